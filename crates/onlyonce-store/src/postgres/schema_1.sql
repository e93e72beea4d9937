-- Version 1. One row a key; the unique hash is the only index that a new key scatters over. No index
-- holds a column that a heartbeat or a completion changes, so both stay within their page (HOT), and
-- the fill factor leaves room there for the answer. What is in progress or unknown also stands in
-- `live`, which stays small.
CREATE TABLE onlyonce.meta (
    name text PRIMARY KEY,
    value bytea NOT NULL
);
CREATE TABLE onlyonce.keys (
    n bigint GENERATED ALWAYS AS IDENTITY,
    revision bigint NOT NULL,
    created_at bigint,
    last_run_at bigint,
    completed_at bigint,
    expires_at bigint,
    lease_until bigint,
    unknown_since bigint,
    reconcile_after bigint,
    delete_at bigint,
    tombstone_ttl bigint NOT NULL,
    fence integer NOT NULL,
    generation integer NOT NULL,
    response_bytes integer,
    response_status smallint,
    row_version smallint NOT NULL,
    negatives smallint NOT NULL,
    inconclusive smallint NOT NULL,
    dead_letter boolean NOT NULL,
    id bytea NOT NULL,
    attempt_id bytea NOT NULL,
    fingerprint bytea,
    recipe bytea NOT NULL,
    caller bytea,
    state text NOT NULL,
    scope text NOT NULL,
    key text NOT NULL,
    route text NOT NULL,
    method text NOT NULL,
    path text NOT NULL,
    last_error text,
    response_head bytea,
    response_body bytea,
    evidence bytea,
    CONSTRAINT keys_by_number PRIMARY KEY (n),
    CONSTRAINT keys_by_id UNIQUE (id)
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
CREATE TABLE onlyonce.live (
    n bigint PRIMARY KEY
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);
CREATE TABLE onlyonce.journal (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at bigint NOT NULL,
    attempt integer NOT NULL,
    id bytea NOT NULL,
    event text NOT NULL,
    from_state text,
    to_state text,
    actor text NOT NULL,
    detail text
);
CREATE INDEX journal_by_id ON onlyonce.journal (id);
CREATE TABLE onlyonce.recipes (
    id bytea PRIMARY KEY,
    recipe bytea NOT NULL
);
-- What people read: times as times, and no bodies.
CREATE VIEW onlyonce.readable_keys AS
SELECT n, scope, key, state, route, method, path, fence AS attempt, generation, last_error,
    dead_letter, response_status, response_bytes, revision,
    to_timestamp(created_at / 1000.0) AS created_at,
    to_timestamp(last_run_at / 1000.0) AS last_run_at,
    to_timestamp(completed_at / 1000.0) AS completed_at,
    to_timestamp(expires_at / 1000.0) AS expires_at,
    to_timestamp(lease_until / 1000.0) AS lease_until,
    to_timestamp(unknown_since / 1000.0) AS unknown_since,
    to_timestamp(reconcile_after / 1000.0) AS reconcile_after,
    to_timestamp(delete_at / 1000.0) AS delete_at,
    encode(id, 'hex') AS id,
    encode(attempt_id, 'hex') AS attempt_id
FROM onlyonce.keys;
-- 244 random bits from the server's strong source, so that whoever runs this file needs no other.
INSERT INTO onlyonce.meta (name, value) VALUES
    ('secret', decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex'));
