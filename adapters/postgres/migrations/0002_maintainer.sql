-- Who does the upkeep: one row, taken when its lease is over. Whoever works on rows of others has this row locked for as
-- long as its transaction lasts, so two never do it at once, whatever their clocks and pauses; and as everybody skips
-- a locked row, nobody waits. No advisory lock: a pooler would give it to somebody else.
CREATE TABLE {schema}.maintainer (
    leased_until bigint NOT NULL,
    -- When all rows were last checked.
    checked_at bigint NOT NULL,
    single boolean NOT NULL PRIMARY KEY CHECK (single),
    -- The id of the workers.
    owner text NOT NULL
);

INSERT INTO {schema}.maintainer (leased_until, checked_at, single, owner) VALUES (0, 0, true, '');
