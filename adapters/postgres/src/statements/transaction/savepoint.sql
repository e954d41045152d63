-- A savepoint of the client's.
--
-- Values: `depth`.
SAVEPOINT queuert_{depth}
