-- Ends an insertion that took several statements.
RELEASE queuert_rows
