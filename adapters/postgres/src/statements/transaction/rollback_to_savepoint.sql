-- Undoes what was written since a savepoint of the client's, and ends it. One message, so that nothing comes in between.
--
-- Values: `depth`.
ROLLBACK TO SAVEPOINT queuert_{depth};
RELEASE SAVEPOINT queuert_{depth}
