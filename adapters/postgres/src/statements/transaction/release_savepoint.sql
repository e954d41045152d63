-- Keeps what was written since a savepoint of the client's.
--
-- Values: `depth`.
RELEASE SAVEPOINT queuert_{depth}
