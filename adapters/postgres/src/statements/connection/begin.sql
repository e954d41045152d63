-- Begins a transaction with settings that end with it. One message. `in_transaction.sql` says what `DEFERRABLE` is for.
--
-- Values: `isolation`, `settings` (each as `set_local.sql`), `mark`.
BEGIN
--: if isolated
ISOLATION LEVEL {isolation}
--: end
--: if deferrable
DEFERRABLE
--: end
{settings}
--: if marked
; {mark}
--: end
