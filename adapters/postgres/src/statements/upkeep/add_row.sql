-- Adds the one row of the upkeep again.
INSERT INTO {schema}.maintainer (leased_until, checked_at, single, owner)
VALUES (0, 0, true, '')
ON CONFLICT DO NOTHING
