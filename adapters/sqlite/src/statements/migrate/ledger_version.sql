-- The latest migration that was applied; zero without any.
SELECT coalesce(max(version), 0)
FROM {prefix}migration
