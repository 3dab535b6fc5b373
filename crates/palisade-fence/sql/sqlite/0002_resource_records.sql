-- A ready-made store. Each row carries its own token.
CREATE TABLE IF NOT EXISTS resource_records (
    resource_id        VARCHAR(100) NOT NULL PRIMARY KEY
        CHECK (typeof(resource_id) = 'text' AND length(resource_id) BETWEEN 1 AND 100),
    resource_data      TEXT,
    last_fencing_token INTEGER NOT NULL DEFAULT 0
        CHECK (typeof(last_fencing_token) = 'integer' AND last_fencing_token BETWEEN 0 AND 9007199254740991),
    updated_at         TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
);
