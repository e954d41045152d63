-- All pauses of job types, with the time of the server: a few rows at most. One row without a type if there are none.
SELECT {now} AS now, pause.type_name, pause.since, pause.until, pause.reason, pause.author
FROM (VALUES (1)) AS one
LEFT JOIN {schema}.pause AS pause ON true
