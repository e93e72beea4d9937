-- Version 4. The scopes that records are in, so that a key is found by one probe for each. `id` is the
-- keyed hash of the scope with an empty key, which no record has; `name` is the scope, encrypted where keys
-- are configured. A scope stands here before the first record in it; programs of version 3 do not see to
-- that, so that newer ones look at all rows until a day after the upgrade.
CREATE TABLE IF NOT EXISTS onlyonce_scopes (
    id BINARY(16) NOT NULL,
    name BLOB NOT NULL,
    PRIMARY KEY (id)
) ENGINE = InnoDB;
