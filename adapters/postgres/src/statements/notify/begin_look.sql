-- Begins a look that may take long. The limit is shorter than the time that the listener waits for the look.
--
-- Reason: only for looks that have taken long before, because it costs three more statements.
BEGIN; SET LOCAL statement_timeout = '4s'
