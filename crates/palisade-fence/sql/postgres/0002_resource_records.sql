-- A ready-made store. Each row carries its own token.
CREATE TABLE IF NOT EXISTS resource_records (
    resource_id        varchar(100) PRIMARY KEY,
    resource_data      text,
    last_fencing_token bigint NOT NULL DEFAULT 0
        CHECK (last_fencing_token BETWEEN 0 AND 9007199254740991),
    updated_at         timestamptz NOT NULL DEFAULT now()
);
