-- The guard row: one for each fenced resource, in the same database as the data it guards (rule F4).
-- A transaction that claims locks it, so check and effect commit together (rule F1).
--
-- Names are compared byte by byte: with a text collation, 'A' and 'a ' would be equal to 'a'.
CREATE TABLE IF NOT EXISTS palisade_fence (
    resource   VARBINARY(255) NOT NULL PRIMARY KEY CHECK (resource <> ''),
    authority  VARBINARY(255),
    `lock`     VARBINARY(255),
    -- The highest token admitted; NULL until the first one.
    token      BIGINT CHECK (token BETWEEN 1 AND 9007199254740991),
    -- Whether something was written under that token, and the highest number of such a write.
    written    BIGINT NOT NULL DEFAULT 0,
    sequence   BIGINT CHECK (sequence BETWEEN 0 AND 9007199254740991),
    -- A checksum of the last numbered write, and its answer.
    digest     BIGINT,
    result     MEDIUMBLOB,
    -- The floor an operator re-armed it with, if ever, and how often that was.
    floor      BIGINT CHECK (floor BETWEEN 1 AND 9007199254740991),
    rearmed    BIGINT NOT NULL DEFAULT 0,
    -- Counts every operation: a transaction that sees an older number sees older data.
    version    BIGINT NOT NULL DEFAULT 0,
    updated_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)
) ENGINE = InnoDB;
