-- Deletes the pause of a type, and returns it if there was one.
--
-- Parameters: $1 the type.
DELETE FROM {schema}.pause
WHERE type_name = $1
RETURNING type_name
