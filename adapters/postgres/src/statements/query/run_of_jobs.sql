-- A run of a merge: the jobs of one type by time, first jobs or later ones, as their index has them.
--
-- Values: `kind`, the condition of the index; `type`; `conditions`; `cut`.
SELECT job.id, job.created_at, job.chain_type_id
FROM {schema}.job AS job
WHERE job.{kind}
    AND job.type_id = {type}
    {conditions}
{cut}
