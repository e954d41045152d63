-- Joins the latest job of a chain as `latest`.
--
-- Argument: the id of the chain's first job, which is read.
CROSS JOIN LATERAL (
    SELECT {latest_id_of_existing:{argument}} AS id
) AS latest_id
JOIN {schema}.job AS latest
    ON latest.id = latest_id.id
