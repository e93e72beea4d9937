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
CREATE TYPE onlyonce.state AS ENUM (
    'in_progress',
    'completed',
    'failed_retryable',
    'unknown',
    'expired'
);
CREATE FUNCTION onlyonce.put_new(bigint, uuid[], bigint[], bigint[], integer[], integer[], uuid[], bytea[], bytea[], bytea[], text[], text[], text[], uuid[], text[], text[], text[], bigint[], bigint[], bigint[]) RETURNS uuid[]
    LANGUAGE plpgsql
    AS $_$
DECLARE
    made uuid[];
    settled uuid[];
BEGIN
    WITH inserted AS (
        INSERT INTO onlyonce.live AS l (
            id, revision, tombstone_ttl, fence, generation, attempt_id, fingerprint, recipe, caller,
            state, scope, key, key_uuid, route, method, path, created_at, last_run_at, lease_until,
            row_version
        )
        SELECT
            i.id, i.revision, i.tombstone_ttl, i.fence, i.generation, i.attempt_id, i.fingerprint,
            i.recipe, i.caller, i.state::onlyonce.state, i.scope, i.key, i.key_uuid, i.route,
            i.method, i.path,
            CASE WHEN i.created_at < 0 THEN $1 - i.created_at - 1 ELSE i.created_at END,
            CASE WHEN i.last_run_at < 0 THEN $1 - i.last_run_at - 1 ELSE i.last_run_at END,
            CASE WHEN i.lease_until < 0 THEN $1 - i.lease_until - 1 ELSE i.lease_until END,
            1
        FROM unnest($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)
            AS i (
                id, revision, tombstone_ttl, fence, generation, attempt_id, fingerprint, recipe,
                caller, state, scope, key, key_uuid, route, method, path, created_at, last_run_at,
                lease_until
            )
        WHERE NOT EXISTS (SELECT FROM onlyonce.keys k WHERE k.id = i.id)
        ORDER BY i.id
        ON CONFLICT ON CONSTRAINT live_by_id DO NOTHING
        RETURNING l.id
    )
    SELECT array_agg(i.id) INTO made FROM inserted i;
    SELECT array_agg(k.id) INTO settled FROM unnest(made) AS m (id) JOIN onlyonce.keys k ON k.id = m.id;
    IF settled IS NOT NULL THEN
        DELETE FROM onlyonce.live l WHERE l.id = ANY (settled);
        made := ARRAY(SELECT m.id FROM unnest(made) AS m (id) WHERE m.id <> ALL (settled));
    END IF;
    RETURN made;
END
$_$;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE onlyonce.journal (
    number bigint NOT NULL,
    at bigint NOT NULL,
    attempt integer NOT NULL,
    id uuid NOT NULL,
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
CREATE SEQUENCE onlyonce.numbers
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
CREATE TABLE onlyonce.keys (
    n bigint DEFAULT nextval('onlyonce.numbers'::regclass) NOT NULL,
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
    state onlyonce.state NOT NULL,
    response_bytes integer,
    response_status smallint,
    row_version smallint NOT NULL,
    negatives smallint,
    inconclusive smallint,
    dead_letter boolean,
    id uuid NOT NULL,
    attempt_id uuid NOT NULL,
    key_uuid uuid,
    fingerprint bytea,
    recipe bytea NOT NULL,
    caller bytea,
    scope text NOT NULL,
    key text,
    route text NOT NULL,
    method text NOT NULL,
    path text NOT NULL,
    last_error text,
    response_head bytea,
    response_body bytea,
    evidence bytea
)
WITH (autovacuum_vacuum_scale_factor='0.05', autovacuum_analyze_scale_factor='0.05');
ALTER TABLE ONLY onlyonce.keys ALTER COLUMN response_body SET STORAGE EXTERNAL;
CREATE TABLE onlyonce.live (
    n bigint DEFAULT nextval('onlyonce.numbers'::regclass) NOT NULL,
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
    state onlyonce.state NOT NULL,
    response_bytes integer,
    response_status smallint,
    row_version smallint NOT NULL,
    negatives smallint,
    inconclusive smallint,
    dead_letter boolean,
    id uuid NOT NULL,
    attempt_id uuid NOT NULL,
    key_uuid uuid,
    fingerprint bytea,
    recipe bytea NOT NULL,
    caller bytea,
    scope text NOT NULL,
    key text,
    route text NOT NULL,
    method text NOT NULL,
    path text NOT NULL,
    last_error text,
    response_head bytea,
    response_body bytea,
    evidence bytea
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='10000', autovacuum_vacuum_cost_delay='0');
ALTER TABLE ONLY onlyonce.live ALTER COLUMN response_body SET STORAGE EXTERNAL;
CREATE TABLE onlyonce.meta (
    name text NOT NULL,
    value bytea NOT NULL
);
CREATE VIEW onlyonce.readable_keys AS
 SELECT both_tables.n,
    both_tables.scope,
    COALESCE(both_tables.key, (both_tables.key_uuid)::text) AS key,
    both_tables.state,
    both_tables.route,
    both_tables.method,
    both_tables.path,
    both_tables.fence AS attempt,
    both_tables.generation,
    both_tables.last_error,
    COALESCE(both_tables.dead_letter, false) AS dead_letter,
    both_tables.response_status,
    both_tables.response_bytes,
    both_tables.revision,
    to_timestamp((((both_tables.created_at)::numeric / 1000.0))::double precision) AS created_at,
    to_timestamp((((COALESCE(both_tables.last_run_at, both_tables.created_at))::numeric / 1000.0))::double precision) AS last_run_at,
    to_timestamp((((both_tables.completed_at)::numeric / 1000.0))::double precision) AS completed_at,
    to_timestamp((((both_tables.expires_at)::numeric / 1000.0))::double precision) AS expires_at,
    to_timestamp((((both_tables.lease_until)::numeric / 1000.0))::double precision) AS lease_until,
    to_timestamp((((both_tables.unknown_since)::numeric / 1000.0))::double precision) AS unknown_since,
    to_timestamp((((both_tables.reconcile_after)::numeric / 1000.0))::double precision) AS reconcile_after,
    to_timestamp((((both_tables.delete_at)::numeric / 1000.0))::double precision) AS delete_at,
    replace((both_tables.id)::text, '-'::text, ''::text) AS id,
    replace((both_tables.attempt_id)::text, '-'::text, ''::text) AS attempt_id
   FROM ( SELECT live.n,
            live.revision,
            live.created_at,
            live.last_run_at,
            live.completed_at,
            live.expires_at,
            live.lease_until,
            live.unknown_since,
            live.reconcile_after,
            live.delete_at,
            live.tombstone_ttl,
            live.fence,
            live.generation,
            live.state,
            live.response_bytes,
            live.response_status,
            live.row_version,
            live.negatives,
            live.inconclusive,
            live.dead_letter,
            live.id,
            live.attempt_id,
            live.key_uuid,
            live.fingerprint,
            live.recipe,
            live.caller,
            live.scope,
            live.key,
            live.route,
            live.method,
            live.path,
            live.last_error,
            live.response_head,
            live.response_body,
            live.evidence
           FROM onlyonce.live
        UNION ALL
         SELECT keys.n,
            keys.revision,
            keys.created_at,
            keys.last_run_at,
            keys.completed_at,
            keys.expires_at,
            keys.lease_until,
            keys.unknown_since,
            keys.reconcile_after,
            keys.delete_at,
            keys.tombstone_ttl,
            keys.fence,
            keys.generation,
            keys.state,
            keys.response_bytes,
            keys.response_status,
            keys.row_version,
            keys.negatives,
            keys.inconclusive,
            keys.dead_letter,
            keys.id,
            keys.attempt_id,
            keys.key_uuid,
            keys.fingerprint,
            keys.recipe,
            keys.caller,
            keys.scope,
            keys.key,
            keys.route,
            keys.method,
            keys.path,
            keys.last_error,
            keys.response_head,
            keys.response_body,
            keys.evidence
           FROM onlyonce.keys) both_tables;
CREATE TABLE onlyonce.recipes (
    id bytea NOT NULL,
    recipe bytea NOT NULL
);
INSERT INTO onlyonce.journal OVERRIDING SYSTEM VALUE VALUES (1, 1794969236197, 1, '7163cded-e55b-cf6f-58eb-1863e2993bc0', 'became_unknown', 'in_progress', 'unknown', 'executor', 'connection_lost');
INSERT INTO onlyonce.journal OVERRIDING SYSTEM VALUE VALUES (2, 1794969236206, 1, '1a402c5f-77fc-8b3c-52c1-3d162a59793e', 'released', 'in_progress', 'failed_retryable', 'executor', 'released_status');
INSERT INTO onlyonce.keys VALUES (1, 98961616693842, 1794969236162, NULL, 1794969236184, 2110329236184, NULL, NULL, NULL, NULL, 86400000, 1, 1, 'completed', 43, 201, 1, NULL, NULL, NULL, '1fa56771-1fee-168f-398c-74cafd9e5ddb', 'bb8bc23f-e919-1786-c5c2-da014c026a51', NULL, '\xb8f46790eac009b5cf100fc6f200d72343df69d0afa4c4280583c04a38b2be90', '\x5c2d4a236a0d24b2', '\x7a882634037a5897ebf1a557cff19f52', 'global', 'golden-completed', 'r', 'POST', '/payments', NULL, '\x01c900032b000000', '\x0106019b01000095020004036c0000001a00000042617365485454502f302e3620507974686f6e2f332e31312e3710732f676f6c64656e7b22222d7d0b00aee72d330b849bc7c91c2c61304b56391758d9d9062418e7828400f56088', NULL);
INSERT INTO onlyonce.keys VALUES (3, 119948990639491, 1794969236200, NULL, NULL, 2110329236206, NULL, NULL, NULL, NULL, 86400000, 1, 1, 'failed_retryable', NULL, NULL, 1, NULL, NULL, NULL, '1a402c5f-77fc-8b3c-52c1-3d162a59793e', 'a139e59a-ac8f-df1c-1c0f-ed17ccfa6d82', NULL, '\xb8f46790eac009b5cf100fc6f200d72343df69d0afa4c4280583c04a38b2be90', '\x5c2d4a236a0d24b2', '\x7a882634037a5897ebf1a557cff19f52', 'global', 'golden-retryable', 'r', 'POST', '/payments', 'released_status', NULL, NULL, NULL);
INSERT INTO onlyonce.live VALUES (2, 119193095467270, 1794969236193, NULL, NULL, NULL, NULL, 1794969236197, NULL, NULL, 86400000, 1, 1, 'unknown', NULL, NULL, 1, NULL, NULL, NULL, '7163cded-e55b-cf6f-58eb-1863e2993bc0', '4f6e3ba4-e1d0-caa7-3a22-ec67ce1d7105', NULL, '\xb8f46790eac009b5cf100fc6f200d72343df69d0afa4c4280583c04a38b2be90', '\x5c2d4a236a0d24b2', '\x7a882634037a5897ebf1a557cff19f52', 'global', 'golden-unknown', 'r', 'POST', '/payments', 'connection_lost', NULL, NULL, NULL);
INSERT INTO onlyonce.meta VALUES ('secret', '\x08823ea7d9fe4464ac7d944203b968d0811bf4875091405397d8f73fe698de32');
INSERT INTO onlyonce.meta VALUES ('schema_version', '\x32');
INSERT INTO onlyonce.meta VALUES ('oldest_program', '\x32');
INSERT INTO onlyonce.recipes VALUES ('\x5c2d4a236a0d24b2', '\x01000000000000000000000000000000000000000000000000040000000000000010636f6e74656e742d656e636f64696e67000000000000000c636f6e74656e742d74797065000000000000000869662d6d61746368000000000000000d69662d6e6f6e652d6d61746368');
SELECT pg_catalog.setval('onlyonce.journal_number_seq', 2, true);
SELECT pg_catalog.setval('onlyonce.numbers', 3, true);
ALTER TABLE ONLY onlyonce.journal
    ADD CONSTRAINT journal_pkey PRIMARY KEY (number);
ALTER TABLE ONLY onlyonce.keys
    ADD CONSTRAINT keys_by_id UNIQUE (id);
ALTER TABLE ONLY onlyonce.keys
    ADD CONSTRAINT keys_by_number PRIMARY KEY (n);
ALTER TABLE ONLY onlyonce.live
    ADD CONSTRAINT live_by_id UNIQUE (id);
ALTER TABLE ONLY onlyonce.live
    ADD CONSTRAINT live_by_number PRIMARY KEY (n);
ALTER TABLE ONLY onlyonce.meta
    ADD CONSTRAINT meta_pkey PRIMARY KEY (name);
ALTER TABLE ONLY onlyonce.recipes
    ADD CONSTRAINT recipes_pkey PRIMARY KEY (id);
CREATE INDEX journal_by_id ON onlyonce.journal USING btree (id);
