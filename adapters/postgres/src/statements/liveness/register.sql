-- Writes the row of this process, and deletes rows from before the last start of the server.
--
-- Parameters: $1 the key of this process, $2 its workers.
WITH outdated AS (
    DELETE FROM {schema}.process AS process
    WHERE process.key <> $1 AND process.registered_at <= {server_start}
)
INSERT INTO {schema}.process AS process (key, registered_at, workers)
VALUES ($1, {now}, $2::text[])
ON CONFLICT (key) DO UPDATE
SET registered_at = excluded.registered_at, workers = excluded.workers
