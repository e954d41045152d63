-- Whether the database has the given types under the given names. True if there is nothing to check.
--
-- Argument: an array of numbers and an array of names, in the same order.
NOT EXISTS (
    SELECT 1
    FROM unnest({argument}) AS expected(id, name)
    WHERE (
        SELECT job_type.name
        FROM {schema}.job_type AS job_type
        WHERE job_type.id = expected.id
    ) IS DISTINCT FROM expected.name
)
