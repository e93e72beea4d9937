-- Version 2. What an application's own transaction uses: messages on their way out, messages that came
-- in, recovery points, and natural keys. Programs of version 1 look at none of it.
-- What is compared is kept as bytes, as above; what a message is about is text, for those who read it.
-- `in_order` is the ordering key until the message is delivered or discarded, then NULL: of one ordering key
-- the first row of that index is the one whose turn it is.
CREATE TABLE IF NOT EXISTS onlyonce_outbox (
    n BIGINT NOT NULL AUTO_INCREMENT,
    id BINARY(16) NOT NULL,
    created_at BIGINT NOT NULL,
    due_at BIGINT NOT NULL,
    claimed_at BIGINT,
    unclear_since BIGINT,
    delivered_at BIGINT,
    attempts INT NOT NULL DEFAULT 0,
    attempt_id BINARY(16),
    key_id BINARY(16),
    settles VARBINARY(128),
    state VARBINARY(20) NOT NULL DEFAULT 'pending',
    target VARBINARY(255) NOT NULL,
    aggregatetype VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    aggregateid VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    type VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT '',
    ordering_key VARBINARY(512),
    in_order VARBINARY(512),
    downstream_key MEDIUMBLOB NOT NULL,
    provider_id MEDIUMBLOB,
    last_error MEDIUMBLOB,
    headers MEDIUMBLOB NOT NULL,
    payload LONGBLOB NOT NULL,
    PRIMARY KEY (n),
    UNIQUE KEY outbox_by_id (id),
    KEY outbox_due (target, state, due_at),
    KEY outbox_in_order (target, in_order),
    KEY outbox_by_state (state)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
CREATE TABLE IF NOT EXISTS onlyonce_inbox (
    consumer VARBINARY(255) NOT NULL,
    message_id VARBINARY(1024) NOT NULL,
    at BIGINT NOT NULL,
    keep_until BIGINT NOT NULL,
    PRIMARY KEY (consumer, message_id),
    KEY inbox_by_age (keep_until)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
CREATE TABLE IF NOT EXISTS onlyonce_phases (
    id BINARY(16) NOT NULL,
    operation VARBINARY(255) NOT NULL,
    point VARBINARY(255) NOT NULL,
    intent VARBINARY(255),
    provider_id MEDIUMBLOB,
    parameters LONGBLOB NOT NULL,
    data LONGBLOB NOT NULL,
    attempt_id BINARY(16) NOT NULL,
    generation INT NOT NULL,
    updated_at BIGINT NOT NULL,
    finished TINYINT NOT NULL,
    PRIMARY KEY (id),
    KEY phases_unfinished (operation, finished, updated_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
-- A row to hold: these servers have no lock that ends with its transaction but that of a row.
CREATE TABLE IF NOT EXISTS onlyonce_natural_keys (
    id BINARY(32) NOT NULL,
    made_at BIGINT NOT NULL,
    PRIMARY KEY (id),
    KEY natural_keys_by_age (made_at)
) ENGINE = InnoDB;
