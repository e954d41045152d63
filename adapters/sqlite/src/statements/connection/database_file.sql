-- The path of the file of a connection, as SQLite has resolved it; empty for a database in memory.
SELECT file
FROM pragma_database_list
WHERE name = 'main'
