-- Fails unless a transaction is open in which no statement has failed, and marks it. One message.
--
-- Values: `mark`.
SAVEPOINT queuert_shield;
RELEASE SAVEPOINT queuert_shield;
{mark}
