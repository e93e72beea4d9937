-- Version 2. What is in progress or unknown stands in `live`, a small table whose room is used again
-- and again; what is settled stands in `keys`, which is only added to until it expires, so that its
-- pages are full. A key stands in exactly one of the two: a change that settles it deletes it there
-- and inserts it here in one statement, and `put_new` sees to it that a new key is in neither.
CREATE TYPE onlyonce.state AS ENUM ('in_progress', 'completed', 'failed_retryable', 'unknown', 'expired');
CREATE SEQUENCE onlyonce.numbers;
DROP VIEW onlyonce.readable_keys;
ALTER TABLE onlyonce.keys RENAME TO keys_1;
ALTER TABLE onlyonce.keys_1 RENAME CONSTRAINT keys_by_number TO keys_1_by_number;
ALTER TABLE onlyonce.keys_1 RENAME CONSTRAINT keys_by_id TO keys_1_by_id;
ALTER TABLE onlyonce.live RENAME TO live_1;
ALTER TABLE onlyonce.live_1 RENAME CONSTRAINT live_pkey TO live_1_pkey;
-- The widest first, so that nothing is lost to alignment. An empty field takes no room: `last_run_at`
-- is empty where it equals `created_at`; counts and the flag are empty for none. A key that is a UUID
-- in small letters stands in `key_uuid`, any other in `key`.
CREATE TABLE onlyonce.keys (
    n bigint NOT NULL DEFAULT nextval('onlyonce.numbers'),
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
    evidence bytea,
    CONSTRAINT keys_by_number PRIMARY KEY (n),
    CONSTRAINT keys_by_id UNIQUE (id)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
-- Answers that are worth it come compressed; the server need not try again.
ALTER TABLE onlyonce.keys ALTER response_body SET STORAGE EXTERNAL;
-- Heartbeats change no indexed column and find room in their page (HOT).
CREATE TABLE onlyonce.live (
    LIKE onlyonce.keys INCLUDING DEFAULTS INCLUDING STORAGE,
    CONSTRAINT live_by_number PRIMARY KEY (n),
    CONSTRAINT live_by_id UNIQUE (id)
) WITH (
    fillfactor = 85, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_cost_delay = 0
);
INSERT INTO onlyonce.keys (
    n, revision, created_at, last_run_at, completed_at, expires_at, lease_until, unknown_since,
    reconcile_after, delete_at, tombstone_ttl, fence, generation, state, response_bytes,
    response_status, row_version, negatives, inconclusive, dead_letter, id, attempt_id, fingerprint,
    recipe, caller, scope, key, route, method, path, last_error, response_head, response_body,
    evidence
)
SELECT
    n, revision, created_at, nullif(last_run_at, created_at), completed_at, expires_at, lease_until,
    unknown_since, reconcile_after, delete_at, tombstone_ttl, fence, generation,
    state::onlyonce.state, response_bytes, response_status, 1, nullif(negatives, 0),
    nullif(inconclusive, 0), nullif(dead_letter, false), encode(id, 'hex')::uuid,
    encode(attempt_id, 'hex')::uuid, fingerprint, recipe, caller, scope, key, route, method, path,
    last_error, response_head, response_body, evidence
FROM onlyonce.keys_1 ORDER BY n;
WITH moved AS (
    DELETE FROM onlyonce.keys k USING onlyonce.live_1 l WHERE l.n = k.n RETURNING k.*
)
INSERT INTO onlyonce.live SELECT * FROM moved;
SELECT setval('onlyonce.numbers', coalesce((SELECT max(n) FROM onlyonce.keys_1), 0) + 1, false);
DROP TABLE onlyonce.keys_1, onlyonce.live_1;
ALTER TABLE onlyonce.journal ALTER id TYPE uuid USING encode(id, 'hex')::uuid;

-- Inserts the keys that are in neither table, and returns their ids. The statements of a function see
-- what was committed before each of them: a key that was settled after the first looked and before it
-- inserted is in `keys` when the second looks, and the first one's row is taken back. Without the
-- second look such a key would be executed twice.
CREATE FUNCTION onlyonce.put_new(
    -- now, id, revision, tombstone_ttl, fence, generation, attempt_id, fingerprint, recipe, caller
    bigint, uuid[], bigint[], bigint[], integer[], integer[], uuid[], bytea[], bytea[], bytea[],
    -- state, scope, key, key_uuid, route, method, path, created_at, last_run_at, lease_until
    text[], text[], text[], uuid[], text[], text[], text[], bigint[], bigint[], bigint[]
) RETURNS uuid[] LANGUAGE plpgsql VOLATILE AS $$
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
$$;
-- What people read: both tables, times as times, and no bodies.
CREATE VIEW onlyonce.readable_keys AS
SELECT n, scope, coalesce(key, key_uuid::text) AS key, state, route, method, path,
    fence AS attempt, generation, last_error, coalesce(dead_letter, false) AS dead_letter,
    response_status, response_bytes, revision,
    to_timestamp(created_at / 1000.0) AS created_at,
    to_timestamp(coalesce(last_run_at, created_at) / 1000.0) AS last_run_at,
    to_timestamp(completed_at / 1000.0) AS completed_at,
    to_timestamp(expires_at / 1000.0) AS expires_at,
    to_timestamp(lease_until / 1000.0) AS lease_until,
    to_timestamp(unknown_since / 1000.0) AS unknown_since,
    to_timestamp(reconcile_after / 1000.0) AS reconcile_after,
    to_timestamp(delete_at / 1000.0) AS delete_at,
    replace(id::text, '-', '') AS id,
    replace(attempt_id::text, '-', '') AS attempt_id
FROM (SELECT * FROM onlyonce.live UNION ALL SELECT * FROM onlyonce.keys) AS both_tables;
