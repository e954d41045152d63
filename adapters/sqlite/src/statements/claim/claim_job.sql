-- The same as claim_jobs.sql for one job.
--
-- ?1: seq. ?2: started at. ?3: worker. ?4: fence. ?5: lease until.
UPDATE {prefix}job
SET
    status = 2,
    attempt = min(attempt, 9223372036854775806) + 1,
    claims = min(claims, 9223372036854775806) + 1,
    started_at = ?2,
    lease_owner = ?3,
    fence = ?4,
    lease_until = ?5
WHERE seq = ?1
