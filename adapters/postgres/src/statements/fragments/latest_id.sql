-- The id of the latest job of a chain; null if there is no such chain.
--
-- Argument: the id of the chain.
coalesce(
    (
        SELECT next.id
        FROM {schema}.job AS next
        WHERE next.chain_id = {argument} AND next.chain_index > 0
        ORDER BY next.chain_index DESC
        LIMIT 1
    ),
    (
        SELECT first.id
        FROM {schema}.job AS first
        WHERE first.id = {argument} AND first.chain_index = 0
    )
)
