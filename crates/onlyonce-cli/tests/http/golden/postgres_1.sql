SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
CREATE SCHEMA onlyonce;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE onlyonce.journal (
    number bigint NOT NULL,
    at bigint NOT NULL,
    attempt integer NOT NULL,
    id bytea NOT NULL,
    event text NOT NULL,
    from_state text,
    to_state text,
    actor text NOT NULL,
    detail text
);
ALTER TABLE onlyonce.journal ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME onlyonce.journal_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE onlyonce.keys (
    n bigint NOT NULL,
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
    evidence bytea
)
WITH (fillfactor='30', autovacuum_vacuum_scale_factor='0.05', autovacuum_analyze_scale_factor='0.05');
ALTER TABLE onlyonce.keys ALTER COLUMN n ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME onlyonce.keys_n_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE onlyonce.live (
    n bigint NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='10000');
CREATE TABLE onlyonce.meta (
    name text NOT NULL,
    value bytea NOT NULL
);
CREATE VIEW onlyonce.readable_keys AS
 SELECT keys.n,
    keys.scope,
    keys.key,
    keys.state,
    keys.route,
    keys.method,
    keys.path,
    keys.fence AS attempt,
    keys.generation,
    keys.last_error,
    keys.dead_letter,
    keys.response_status,
    keys.response_bytes,
    keys.revision,
    to_timestamp((((keys.created_at)::numeric / 1000.0))::double precision) AS created_at,
    to_timestamp((((keys.last_run_at)::numeric / 1000.0))::double precision) AS last_run_at,
    to_timestamp((((keys.completed_at)::numeric / 1000.0))::double precision) AS completed_at,
    to_timestamp((((keys.expires_at)::numeric / 1000.0))::double precision) AS expires_at,
    to_timestamp((((keys.lease_until)::numeric / 1000.0))::double precision) AS lease_until,
    to_timestamp((((keys.unknown_since)::numeric / 1000.0))::double precision) AS unknown_since,
    to_timestamp((((keys.reconcile_after)::numeric / 1000.0))::double precision) AS reconcile_after,
    to_timestamp((((keys.delete_at)::numeric / 1000.0))::double precision) AS delete_at,
    encode(keys.id, 'hex'::text) AS id,
    encode(keys.attempt_id, 'hex'::text) AS attempt_id
   FROM onlyonce.keys;
CREATE TABLE onlyonce.recipes (
    id bytea NOT NULL,
    recipe bytea NOT NULL
);
INSERT INTO onlyonce.journal OVERRIDING SYSTEM VALUE VALUES (1, 1794967950902, 1, '\x9e29de01547d03587320a8d2c4aabced', 'became_unknown', 'in_progress', 'unknown', 'executor', 'connection_lost');
INSERT INTO onlyonce.journal OVERRIDING SYSTEM VALUE VALUES (2, 1794967950910, 1, '\xadfb17ba3382a32dbf73ffc87f7eddfc', 'released', 'in_progress', 'failed_retryable', 'executor', 'released_status');
INSERT INTO onlyonce.keys OVERRIDING SYSTEM VALUE VALUES (1, 122435366937554, 1794967950846, 1794967950846, 1794967950897, 2110327950897, NULL, NULL, NULL, NULL, 86400000, 1, 1, 43, 201, 1, 0, 0, false, '\x3d1fef408804ceafa2e492bcd653dfb8', '\xa2c4f3002aca87afe99f6f5ab48de3d1', '\x70d7decc1d3ceb004654f2b8f6c27c022c213f5c9911f19613b09526ae1eebdb', '\x5c2d4a236a0d24b2', '\xe58af19e84dccc2544a1c36bfe8db89a', 'completed', 'global', 'golden-completed', 'r', 'POST', '/payments', NULL, '\x01c90001030006007365727665721a00000042617365485454502f302e3620507974686f6e2f332e31312e370c00636f6e74656e742d74797065100000006170706c69636174696f6e2f6a736f6e08006c6f636174696f6e100000002f7061796d656e74732f676f6c64656e', '\x7b2270616964223a22676f6c64656e222c226e6f7465223a22676f6c64656e2d636f6d706c65746564227d', NULL);
INSERT INTO onlyonce.keys OVERRIDING SYSTEM VALUE VALUES (2, 66869694699786, 1794967950900, 1794967950900, NULL, NULL, NULL, 1794967950902, NULL, NULL, 86400000, 1, 1, NULL, NULL, 1, 0, 0, false, '\x9e29de01547d03587320a8d2c4aabced', '\x2a222d1475909a285248bcd150661909', '\x70d7decc1d3ceb004654f2b8f6c27c022c213f5c9911f19613b09526ae1eebdb', '\x5c2d4a236a0d24b2', '\xe58af19e84dccc2544a1c36bfe8db89a', 'unknown', 'global', 'golden-unknown', 'r', 'POST', '/payments', 'connection_lost', NULL, NULL, NULL);
INSERT INTO onlyonce.keys OVERRIDING SYSTEM VALUE VALUES (3, 120837935556679, 1794967950906, 1794967950906, NULL, 2110327950910, NULL, NULL, NULL, NULL, 86400000, 1, 1, NULL, NULL, 1, 0, 0, false, '\xadfb17ba3382a32dbf73ffc87f7eddfc', '\x0c71c737db0eb17afe1aede6c6396846', '\x70d7decc1d3ceb004654f2b8f6c27c022c213f5c9911f19613b09526ae1eebdb', '\x5c2d4a236a0d24b2', '\xe58af19e84dccc2544a1c36bfe8db89a', 'failed_retryable', 'global', 'golden-retryable', 'r', 'POST', '/payments', 'released_status', NULL, NULL, NULL);
INSERT INTO onlyonce.live VALUES (2);
INSERT INTO onlyonce.meta VALUES ('secret', '\x8b7ffdd72c964e119f9f729260afe6bbbc9fda39b85b47b4b941145d3552c6c5');
INSERT INTO onlyonce.meta VALUES ('schema_version', '\x31');
INSERT INTO onlyonce.meta VALUES ('oldest_program', '\x31');
INSERT INTO onlyonce.recipes VALUES ('\x5c2d4a236a0d24b2', '\x01000000000000000000000000000000000000000000000000040000000000000010636f6e74656e742d656e636f64696e67000000000000000c636f6e74656e742d74797065000000000000000869662d6d61746368000000000000000d69662d6e6f6e652d6d61746368');
SELECT pg_catalog.setval('onlyonce.journal_number_seq', 2, true);
SELECT pg_catalog.setval('onlyonce.keys_n_seq', 3, true);
ALTER TABLE ONLY onlyonce.journal
    ADD CONSTRAINT journal_pkey PRIMARY KEY (number);
ALTER TABLE ONLY onlyonce.keys
    ADD CONSTRAINT keys_by_id UNIQUE (id);
ALTER TABLE ONLY onlyonce.keys
    ADD CONSTRAINT keys_by_number PRIMARY KEY (n);
ALTER TABLE ONLY onlyonce.live
    ADD CONSTRAINT live_pkey PRIMARY KEY (n);
ALTER TABLE ONLY onlyonce.meta
    ADD CONSTRAINT meta_pkey PRIMARY KEY (name);
ALTER TABLE ONLY onlyonce.recipes
    ADD CONSTRAINT recipes_pkey PRIMARY KEY (id);
CREATE INDEX journal_by_id ON onlyonce.journal USING btree (id);
