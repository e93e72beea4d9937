-- Version 1. One row a key, in the order in which keys came; the unique hash is the only index that a
-- new key scatters over. Text is kept as bytes, so that comparison is exact whatever the server's
-- collation: case, accents and trailing spaces count. What is in progress or unknown has `is_live` 1,
-- all else NULL, so that the sweeper finds few among many. Times are milliseconds since 1970.
CREATE TABLE IF NOT EXISTS onlyonce_meta (
    name VARBINARY(64) NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (name)
) ENGINE = InnoDB;
CREATE TABLE IF NOT EXISTS onlyonce_keys (
    n BIGINT NOT NULL AUTO_INCREMENT,
    id BINARY(16) NOT NULL,
    is_live TINYINT,
    row_version SMALLINT NOT NULL,
    revision BIGINT NOT NULL,
    attempt_id BINARY(16) NOT NULL,
    fence INT NOT NULL,
    generation INT NOT NULL,
    negatives SMALLINT NOT NULL DEFAULT 0,
    inconclusive SMALLINT NOT NULL DEFAULT 0,
    dead_letter TINYINT NOT NULL DEFAULT 0,
    response_status SMALLINT,
    response_bytes INT,
    created_at BIGINT,
    last_run_at BIGINT,
    completed_at BIGINT,
    expires_at BIGINT,
    lease_until BIGINT,
    unknown_since BIGINT,
    reconcile_after BIGINT,
    delete_at BIGINT,
    tombstone_ttl BIGINT NOT NULL,
    fingerprint BINARY(32),
    recipe BINARY(8) NOT NULL,
    caller BINARY(16),
    state VARBINARY(20) NOT NULL,
    last_error VARBINARY(64),
    scope BLOB NOT NULL,
    `key` BLOB NOT NULL,
    route TINYBLOB NOT NULL,
    method TINYBLOB NOT NULL,
    path MEDIUMBLOB NOT NULL,
    response_head MEDIUMBLOB,
    response_body LONGBLOB,
    evidence LONGBLOB,
    PRIMARY KEY (n),
    UNIQUE KEY keys_by_id (id),
    KEY keys_that_live (is_live)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
CREATE TABLE IF NOT EXISTS onlyonce_journal (
    number BIGINT NOT NULL AUTO_INCREMENT,
    at BIGINT NOT NULL,
    attempt INT NOT NULL,
    id BINARY(16) NOT NULL,
    event VARBINARY(64) NOT NULL,
    from_state VARBINARY(20),
    to_state VARBINARY(20),
    actor VARBINARY(20) NOT NULL,
    detail MEDIUMBLOB,
    PRIMARY KEY (number),
    KEY journal_by_id (id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
CREATE TABLE IF NOT EXISTS onlyonce_recipes (
    id BINARY(8) NOT NULL,
    recipe BLOB NOT NULL,
    PRIMARY KEY (id)
) ENGINE = InnoDB;
-- What people read: text as text, times as times (UTC), and no bodies.
CREATE OR REPLACE VIEW onlyonce_readable_keys AS
SELECT n, CONVERT(scope USING utf8mb4) AS scope, CONVERT(`key` USING utf8mb4) AS `key`,
    CONVERT(state USING utf8mb4) AS state, CONVERT(route USING utf8mb4) AS route,
    CONVERT(method USING utf8mb4) AS method, CONVERT(path USING utf8mb4) AS path,
    fence AS attempt, generation, CONVERT(last_error USING utf8mb4) AS last_error,
    dead_letter, response_status, response_bytes, revision,
    TIMESTAMPADD(MICROSECOND, created_at * 1000, '1970-01-01') AS created_at,
    TIMESTAMPADD(MICROSECOND, last_run_at * 1000, '1970-01-01') AS last_run_at,
    TIMESTAMPADD(MICROSECOND, completed_at * 1000, '1970-01-01') AS completed_at,
    TIMESTAMPADD(MICROSECOND, expires_at * 1000, '1970-01-01') AS expires_at,
    TIMESTAMPADD(MICROSECOND, lease_until * 1000, '1970-01-01') AS lease_until,
    TIMESTAMPADD(MICROSECOND, unknown_since * 1000, '1970-01-01') AS unknown_since,
    TIMESTAMPADD(MICROSECOND, reconcile_after * 1000, '1970-01-01') AS reconcile_after,
    TIMESTAMPADD(MICROSECOND, delete_at * 1000, '1970-01-01') AS delete_at,
    LOWER(HEX(id)) AS id, LOWER(HEX(attempt_id)) AS attempt_id
FROM onlyonce_keys;
-- 256 random bits from the server's strong source, once.
INSERT INTO onlyonce_meta (name, value) VALUES ('secret', RANDOM_BYTES(32))
    ON DUPLICATE KEY UPDATE name = name;
