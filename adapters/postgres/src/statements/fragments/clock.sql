-- The time of a statement that begins with reading it into `clock`.
(SELECT now FROM clock)
