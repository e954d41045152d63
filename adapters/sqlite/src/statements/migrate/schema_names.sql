-- The names of all tables and indexes. SQLite compares names without regard to case.
SELECT lower(name)
FROM sqlite_schema
