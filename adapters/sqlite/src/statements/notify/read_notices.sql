-- The hints after one that was read before.
--
-- ?1: the number of that hint.
SELECT seq, origin, kind, id, type, count
FROM {prefix}notice
WHERE seq > ?1
ORDER BY seq
