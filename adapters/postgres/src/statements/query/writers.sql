-- The second half of the watermark: the transactions that may insert jobs.
--
-- Answer: a row per process; null for a prepared transaction.
-- Reason: only this lock mode counts. Whatever else a transaction has locked, an `INSERT` takes this lock too, and
-- maintenance of the table does not. The table is looked up by its name at the time of the statement, because the schema
-- may have been created anew.
SELECT DISTINCT locks.pid AS process
FROM pg_locks AS locks
WHERE locks.locktype = 'relation'
    AND locks.mode = 'RowExclusiveLock'
    AND locks.granted
    AND locks.relation = to_regclass(E'{schema_text}.job')
    AND locks.database = (
        SELECT database.oid
        FROM pg_database AS database
        WHERE database.datname = current_database()
    )
