-- Locks chains: the row of the latest job of each, in whichever table has it.
--
-- Parameters: $1 chains.
-- Answer: a row per chain, with its latest job (null if there is no such chain), and whether that job's row is locked now.
-- Locks: table after table, in each of them in order of id. A row that another transaction has locked is waited for, or
-- (`skips`) left out.
WITH wanted AS MATERIALIZED (
    SELECT chain.id AS chain_id, {latest_id:chain.id} AS job_id
    FROM unnest($1::uuid[]) AS chain(id)
), in_ready AS MATERIALIZED (
    {lock_wanted:ready}
), in_later AS MATERIALIZED (
    {lock_wanted:later}
), in_waiting AS MATERIALIZED (
    {lock_wanted:waiting}
), in_running AS MATERIALIZED (
    {lock_wanted:running}
), in_result AS MATERIALIZED (
    {lock_wanted:result}
), in_stopped AS MATERIALIZED (
    {lock_wanted:stopped}
), locked AS MATERIALIZED (
    SELECT id FROM in_ready
    UNION ALL
    SELECT id FROM in_later
    UNION ALL
    SELECT id FROM in_waiting
    UNION ALL
    SELECT id FROM in_running
    UNION ALL
    SELECT id FROM in_result
    UNION ALL
    SELECT id FROM in_stopped
)
SELECT
    wanted.chain_id,
    wanted.job_id,
    EXISTS (
        SELECT 1
        FROM locked
        WHERE locked.id = wanted.job_id
    ) AS is_locked
FROM wanted
