-- A part of other statements, which write it {latest_job_of(..)} with an expression for the id of a chain: the row number
-- of the latest job of that chain.
--
-- Almost always the latest job is the first one, which the index over ids finds; else it is the last entry of the chain in
-- the index over later jobs.
coalesce(
    (
        SELECT seq
        FROM {prefix}job
        WHERE id = {chain}
            AND chain_index = 0
            AND latest = 1
    ),
    (
        SELECT seq
        FROM {prefix}job
        WHERE chain_id = {chain}
            AND chain_index > 0
        ORDER BY chain_index DESC
        LIMIT 1
    )
)
