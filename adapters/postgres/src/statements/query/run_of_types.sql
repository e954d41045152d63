-- A part of a merge: as many rows of each type as are needed. For more types than there can be a run for each.
--
-- Values: `types`, `run` for the type `run_type.id`.
(
    SELECT merged.*
    FROM unnest({types}) AS run_type(id)
    CROSS JOIN LATERAL (
        {run}
        OFFSET 0
    ) AS merged
)
