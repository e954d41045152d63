-- The columns of the table that records migrations.
--
-- ?1: its name.
SELECT name
FROM pragma_table_info(?1)
ORDER BY cid
