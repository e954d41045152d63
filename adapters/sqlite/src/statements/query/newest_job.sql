-- The time at which the newest job was created; null without jobs. Reads the last entry of the index over times.
SELECT max(created_at) AS created_at
FROM {prefix}job
