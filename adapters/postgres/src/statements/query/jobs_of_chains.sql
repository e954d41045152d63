-- A source of a page: the jobs of chains.
--
-- Values: `chains`, a statement with the column `id`; `value`; `conditions`; `cut_chain`, how much of a chain is read;
-- `cut`.
-- Reason: a chain may be long. If the page is in order of the index in the chain, no more of each is read than the page
-- can hold.
SELECT job.id, {value}::bigint AS value
FROM ({chains}) AS chain
CROSS JOIN LATERAL (
    (
        SELECT job.id, job.created_at, job.chain_index
        FROM {schema}.job AS job
        WHERE job.id = chain.id AND job.chain_index = 0
            {conditions}
    )
    UNION ALL
    (
        SELECT job.id, job.created_at, job.chain_index
        FROM {schema}.job AS job
        WHERE job.chain_id = chain.id AND job.chain_index > 0
            {conditions}
        {cut_chain}
    )
    OFFSET 0
) AS job
{cut}
