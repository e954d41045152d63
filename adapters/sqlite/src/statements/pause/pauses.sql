-- All pauses of job types: a few rows at most.
SELECT type, since, until, reason, author
FROM {prefix}pause
