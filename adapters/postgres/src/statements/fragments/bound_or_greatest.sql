-- The bound of `claim/claim.sql`, or what is greater than anything if there is none.
(
    coalesce((SELECT bound.rank FROM bound), 9223372036854775807),
    coalesce((SELECT bound.id FROM bound), 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid)
)
