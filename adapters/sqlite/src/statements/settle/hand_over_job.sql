-- The same as hand_over_jobs.sql for one job.
--
-- ?1: job. ?2: started at. ?3: worker. ?4: fence. ?5: lease until.
UPDATE {prefix}job
SET
    attempt = 1,
    claims = 1,
    started_at = ?2,
    lease_owner = ?3,
    fence = ?4,
    lease_until = ?5
WHERE id = ?1
