-- What a caller can leave behind on a connection, as one JSON array: the number of attached databases, the number of
-- temporary objects, whether `LIKE` ignores case, and the settings.
--
-- {settings}: one query per setting.
SELECT json_array(
    (SELECT count(*) FROM pragma_database_list WHERE seq > 1),
    (SELECT count(*) FROM sqlite_temp_master),
    'a' LIKE 'A',
    {settings}
)
