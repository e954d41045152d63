-- Notes that a worker belongs to a process.
--
-- ?1: the key of the process. ?2: the worker.
INSERT OR IGNORE INTO {prefix}process (key, worker)
VALUES (?1, ?2)
