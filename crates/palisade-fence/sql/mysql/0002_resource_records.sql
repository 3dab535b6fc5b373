-- A ready-made store. Each row carries its own token. The key has 1 to 100 characters of UTF-8 and is compared
-- byte by byte: with a text collation, 'A' and 'a ' would be equal to 'a'.
CREATE TABLE IF NOT EXISTS resource_records (
    resource_id        VARBINARY(400) NOT NULL PRIMARY KEY,
    resource_data      LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    last_fencing_token BIGINT NOT NULL DEFAULT 0
        CHECK (last_fencing_token BETWEEN 0 AND 9007199254740991),
    updated_at         DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)
) ENGINE = InnoDB;
