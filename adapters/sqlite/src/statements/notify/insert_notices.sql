-- Writes hints for other processes.
--
-- ?1: a JSON array of [kind, id, type, count]. ?2: the handle that writes them. ?3: the time.
INSERT INTO {prefix}notice (origin, kind, id, type, count, at)
SELECT
    ?2,
    value ->> 0,
    unhex(value ->> 1),
    value ->> 2,
    value ->> 3,
    ?3
FROM json_each(?1)
