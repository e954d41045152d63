-- Begins a transaction with settings that end with it. One message.
--
-- Values: `isolation`, `settings` (each as `set_local.sql`), `mark`.
BEGIN
--: if isolated
ISOLATION LEVEL {isolation}
--: end
{settings}
--: if marked
; {mark}
--: end
