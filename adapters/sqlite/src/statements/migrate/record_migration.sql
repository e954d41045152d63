-- Records that a migration was applied.
--
-- {version} and {name} are those of the migration.
INSERT INTO {prefix}migration (version, name, applied_at)
VALUES ({version}, '{name}', CAST(unixepoch('subsec') * 1000000 AS INTEGER));
