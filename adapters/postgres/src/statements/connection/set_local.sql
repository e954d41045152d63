-- A setting of a transaction; a part of `begin.sql`.
--
-- Values: `name`, `value`.
; SET LOCAL {name} = '{value}'
