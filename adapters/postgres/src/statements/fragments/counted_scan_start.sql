-- Where the first look at the index of a claim begins: not before the entries that were read until then have been counted.
(SELECT CASE WHEN clock.ready_entries >= 0 THEN $7::bigint END FROM clock)
