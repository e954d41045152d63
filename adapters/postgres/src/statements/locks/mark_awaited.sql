-- Notes on the latest jobs of chains that a job has these chains as blockers.
--
-- Parameters: $1 latest jobs, whose rows are locked.
-- Values: `table`.
-- Reason: the row is written even if it says so already, and even if the chain has completed. A transaction with one snapshot
-- for all of its statements may be about to end or delete the chain, and cannot see the new job; it must not get the lock of
-- a row that has not changed, and go on. Of a completed chain (`completed`) nothing is noted: only a deletion looks for the
-- dependants of such a chain, and it asks for the edges.
UPDATE {schema}.{table}
--: if completed
SET final = final
--: else
SET awaited = true
--: end
WHERE id = ANY ($1::uuid[])
