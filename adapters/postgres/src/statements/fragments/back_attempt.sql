-- How many attempts the job `ended`, which is given back, has had: one that was released or snoozed does not count.
CASE WHEN ended.kind = 2 THEN ended.attempt ELSE greatest(ended.attempt, 1) - 1 END
