-- Adds types, and returns the rows that have their names or their numbers: one message of several statements, which is
-- one transaction.
--
-- Values: `rows`, a list of (number, name) as literals, in order of name.
-- Locks: rows are inserted in order of name, so that two sessions that add the same types do not wait for each other in a
-- circle. READ COMMITTED whatever the session begins with otherwise: two processes that add a type at once must not
-- conflict.
-- Reason: a plain message needs no parameters to be prepared, and the server commits before it waits for the next one.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
--: if numbers_types_in_order
LOCK TABLE {schema}.job_type IN EXCLUSIVE MODE;
--: end
INSERT INTO {schema}.job_type (id, name)
SELECT
--: if numbers_types_in_order
    (SELECT coalesce(max(id), 0) FROM {schema}.job_type) + (row_number() OVER (ORDER BY added.name))::integer,
--: else
    added.id,
--: end
    added.name
FROM (VALUES {rows}) AS added(id, name)
ORDER BY added.name
ON CONFLICT DO NOTHING;
SELECT job_type.id, job_type.name
FROM {schema}.job_type AS job_type
WHERE EXISTS (
    SELECT 1
    FROM (VALUES {rows}) AS added(id, name)
    WHERE added.name = job_type.name OR added.id = job_type.id
)
