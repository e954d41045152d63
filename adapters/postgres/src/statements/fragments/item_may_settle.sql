-- Whether the running job `running` is the one of `item`, under its fence, and is not the end of an awaited chain.
running.id = ANY (ARRAY[item.id])
--: if not ignores_fences
    AND running.fence = item.fence
--: end
--: if finishes
    AND NOT (
--: if mixed
        item.kind = 0 AND
--: end
--: if looks_for_dependants_too_early
        EXISTS (
            SELECT 1
            FROM {schema}.job AS job
            JOIN {schema}.blocker AS blocker
                ON blocker.chain_id = job.chain_id
            WHERE job.id = item.id
        )
--: else
        running.awaited
--: end
    )
--: end
