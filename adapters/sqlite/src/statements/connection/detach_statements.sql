-- The statements that detach the databases that are attached to a connection.
SELECT format('DETACH "%w"', name)
FROM pragma_database_list
WHERE seq > 1
