-- The statements that drop the temporary objects of a connection: triggers first, then views. A table takes its indexes
-- with it.
SELECT format('DROP %s IF EXISTS temp."%w"', type, name)
FROM sqlite_temp_master
WHERE type IN ('trigger', 'view', 'table')
    AND name NOT LIKE 'sqlite!_%' ESCAPE '!'
ORDER BY type <> 'trigger', type <> 'view'
