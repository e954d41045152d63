-- Deletes all hints but the newest.
--
-- ?1: how many to keep.
DELETE FROM {prefix}notice
WHERE seq <= (SELECT max(seq) FROM {prefix}notice) - ?1
