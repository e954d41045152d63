-- What tells a session that was made with the options of this handle, and by its server, from one that a pooler lends.
--
-- Answer: the number of the session lock, and the source of a setting. A pooler may ignore the options of a connection, or
-- send them as statements to whichever session it hands out: then the number is missing, or the source of the setting is
-- another one than `client`.
-- Reason: sent as one plain message, which no pooler tears apart or has to remember.
SELECT
    current_setting('queuert.session_lock', true) AS key,
    (
        SELECT settings.source
        FROM pg_catalog.pg_settings AS settings
        WHERE settings.name = 'plan_cache_mode'
    ) AS source
