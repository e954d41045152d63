-- Fails unless the transaction has its mark and no statement of it has failed.
SELECT CASE WHEN {in_transaction} THEN '' ELSE {transaction_ended}::text END
