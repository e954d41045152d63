-- The number of the newest hint; zero without hints.
SELECT coalesce(max(seq), 0) AS seq
FROM {prefix}notice
