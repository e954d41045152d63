-- Deletes the pause of a type, and returns it if there was one.
--
-- Parameters: ?1 the type.
DELETE FROM {prefix}pause
WHERE type = ?1
RETURNING type
