-- The elements of what read_session.sql has found, as texts.
--
-- ?1: what it has found.
SELECT CAST(value AS TEXT)
FROM json_each(?1)
