-- The ledger of the schema's steps. It is this library's own: migrations of the application never meet it.
CREATE TABLE IF NOT EXISTS {schema}.migration (
    version integer PRIMARY KEY,
    name text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)
