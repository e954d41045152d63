-- The first jobs of one type; a part of `claim/claim.sql`.
--
-- Values: `place` of the type in $1, `scan_start`, `reach`.
(
    SELECT ready.ctid AS row_address, ready.rank, ready.id
    FROM {schema}.ready AS ready
    WHERE ready.type_id = ($1::integer[])[{place}] AND ready.rank >= {scan_start}
    ORDER BY ready.rank, ready.id
    LIMIT {reach}
)
