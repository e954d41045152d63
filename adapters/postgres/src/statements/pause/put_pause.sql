-- Writes a pause in place of the one that the type has.
--
-- Parameters: $1 the type, $2 its beginning, $3 its end or null, $4 the reason or null, $5 the author or null.
INSERT INTO {schema}.pause (type_name, since, until, reason, author)
VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (type_name) DO UPDATE
SET since = excluded.since, until = excluded.until, reason = excluded.reason, author = excluded.author
