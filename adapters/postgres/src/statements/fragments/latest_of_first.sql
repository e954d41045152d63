-- Joins the id of the latest job of the chain that begins with `first`, as `latest.id`. It is computed once for each
-- chain, hence the fence.
CROSS JOIN LATERAL (
    SELECT {latest_id_of_existing:first.id} AS id
    OFFSET 0
) AS latest
