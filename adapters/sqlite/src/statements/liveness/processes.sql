-- All processes that hold or held leases, with their workers.
SELECT key, worker
FROM {prefix}process
