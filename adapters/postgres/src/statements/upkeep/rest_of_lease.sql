-- How long the lease of the upkeep still lasts.
--
-- Answer: no row if there is none, as after all tables were emptied.
SELECT maintainer.leased_until - {now} AS rest
FROM {schema}.maintainer AS maintainer
WHERE maintainer.single
