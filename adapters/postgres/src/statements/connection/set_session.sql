-- A setting of a session, which lasts beyond the transaction; a column of a `SELECT`.
--
-- Values: `name`, `value`.
set_config('{name}', '{value}', false)
