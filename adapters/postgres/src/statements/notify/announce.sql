-- Announces, by itself.
--
-- Values: `channel` and `payloads`, as literals.
-- Reason: a plain text takes one round trip, where a statement with parameters that is not kept prepared takes two. Its
-- commit does not wait for the disk: a wake-up is a hint, and a crash of the server loses it anyway, because the listeners
-- are gone.
SELECT set_config('synchronous_commit', 'off', true), pg_notify({channel}, payload)
FROM unnest(ARRAY[{payloads}]) AS payload
