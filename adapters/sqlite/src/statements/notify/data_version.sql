-- The change counter of the file, which moves when another connection commits.
PRAGMA data_version
