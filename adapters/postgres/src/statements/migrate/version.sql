-- The version of the schema, by its ledger.
SELECT coalesce(max(version), 0)
FROM {schema}.migration
