-- When the job `ended`, which is given back, is due.
CASE WHEN ended.kind = 4 THEN greatest(ended.scheduled_at, 0) ELSE ended.next_at END
