-- Which process has which workers, so that leases of a process that has died need not expire first. Each key is a file
-- beside this one (`..-alive-<key>`), locked by its process for as long as it lives. Written once per set of workers.
CREATE TABLE {prefix}process (
    key BLOB NOT NULL,
    worker TEXT NOT NULL,
    PRIMARY KEY (key, worker)
) STRICT, WITHOUT ROWID;
