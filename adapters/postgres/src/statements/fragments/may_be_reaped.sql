-- Whether the expired row `running` is one to take: of one of the types $1, or with another type than its job has, so that
-- perhaps no process runs its type. A row without a job stays where it is, and the check of all rows reports it.
--
-- Reason: a subselect, which is looked up for each row that has expired, and for no other.
(
    SELECT running.type_id = ANY ($1::integer[]) OR running.type_id <> job.type_id
    FROM {schema}.job AS job
    WHERE job.id = running.id
)
