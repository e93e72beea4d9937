-- Version 3. What an application's own transaction uses: messages on their way out, messages that came
-- in, recovery points, and what the functions below must know of each route. Programs of version 2
-- look at none of it.
CREATE TABLE onlyonce.routes (
    route text PRIMARY KEY,
    ttl bigint NOT NULL,
    max_body_size bigint NOT NULL,
    max_execution bigint NOT NULL,
    reconcile_after bigint
);
-- A message stands here from the commit that made it until it is delivered. Whoever delivers claims by
-- state, passing over locked rows, and never by "number above the last one": rows commit out of order.
CREATE TABLE onlyonce.outbox (
    n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    created_at bigint NOT NULL,
    due_at bigint NOT NULL,
    claimed_at bigint,
    claimed_until bigint,
    unclear_since bigint,
    delivered_at bigint,
    attempts integer NOT NULL DEFAULT 0,
    attempt_id uuid,
    key_id uuid,
    settles text,
    state text NOT NULL DEFAULT 'pending',
    target text NOT NULL,
    aggregatetype text,
    aggregateid text,
    type text NOT NULL DEFAULT '',
    ordering_key text,
    downstream_key text NOT NULL,
    provider_id text,
    last_error text,
    headers jsonb NOT NULL DEFAULT '{}',
    payload bytea NOT NULL
) WITH (
    fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0
);
-- A claim changes no indexed column and finds room in its page (HOT). What is looked for by its name is
-- nearly always dead: no other row pays for an index of names.
CREATE INDEX outbox_due ON onlyonce.outbox (target, due_at, n) WHERE state = 'pending';
CREATE INDEX outbox_in_order ON onlyonce.outbox (target, ordering_key, n)
    WHERE ordering_key IS NOT NULL AND state IN ('pending', 'dead', 'unknown');
CREATE INDEX outbox_dead ON onlyonce.outbox (n) WHERE state IN ('dead', 'unknown');
CREATE INDEX outbox_dead_by_id ON onlyonce.outbox (id) WHERE state IN ('dead', 'unknown');
-- A message that came in, and the effect of it, are committed together or not at all.
CREATE TABLE onlyonce.inbox (
    consumer text NOT NULL,
    message_id text NOT NULL,
    at bigint NOT NULL,
    keep_until bigint NOT NULL,
    PRIMARY KEY (consumer, message_id)
);
CREATE INDEX inbox_by_age ON onlyonce.inbox (keep_until);
-- The recovery point of an operation of several phases: written in the transaction of the phase that
-- leads to it, so it never runs ahead of what was done, nor behind it.
CREATE TABLE onlyonce.phases (
    id uuid PRIMARY KEY,
    operation text NOT NULL,
    point text NOT NULL,
    intent text,
    provider_id text,
    parameters bytea NOT NULL,
    data bytea NOT NULL,
    attempt_id uuid NOT NULL,
    generation integer NOT NULL,
    updated_at bigint NOT NULL,
    finished boolean NOT NULL
);
CREATE INDEX phases_unfinished ON onlyonce.phases (updated_at) WHERE NOT finished;
-- A key stands in one of the two tables.
CREATE VIEW onlyonce.both_tables AS
SELECT id AS uid, row_version, scope, coalesce(key, key_uuid::text) AS key, route, method, path, revision,
    state::text AS state, uuid_send(attempt_id) AS attempt_id, fence, generation, fingerprint, recipe,
    caller, tombstone_ttl, last_error, created_at, coalesce(last_run_at, created_at) AS last_run_at,
    completed_at, expires_at, lease_until, unknown_since, reconcile_after, delete_at, response_status,
    response_bytes, response_head, response_body, evidence, coalesce(negatives, 0::smallint) AS negatives,
    coalesce(inconclusive, 0::smallint) AS inconclusive, coalesce(dead_letter, false) AS dead_letter
FROM onlyonce.live
UNION ALL
SELECT id AS uid, row_version, scope, coalesce(key, key_uuid::text) AS key, route, method, path, revision,
    state::text AS state, uuid_send(attempt_id) AS attempt_id, fence, generation, fingerprint, recipe,
    caller, tombstone_ttl, last_error, created_at, coalesce(last_run_at, created_at) AS last_run_at,
    completed_at, expires_at, lease_until, unknown_since, reconcile_after, delete_at, response_status,
    response_bytes, response_head, response_body, evidence, coalesce(negatives, 0::smallint) AS negatives,
    coalesce(inconclusive, 0::smallint) AS inconclusive, coalesce(dead_letter, false) AS dead_letter
FROM onlyonce.keys;
-- A row as the functions see it, however it is stored.
CREATE TYPE onlyonce.row AS (
    id bytea, revision bigint, state text, attempt_id bytea, fence integer, generation integer,
    fingerprint bytea, recipe bytea, caller bytea, scope text, key text, route text, method text,
    path text, tombstone_ttl bigint, last_error text, created_at bigint, last_run_at bigint,
    completed_at bigint, expires_at bigint, lease_until bigint, unknown_since bigint,
    reconcile_after bigint, delete_at bigint, response_status integer, response_bytes integer,
    response_head bytea, response_body bytea, evidence bytea, negatives integer, inconclusive integer,
    dead_letter boolean
);
-- How functions compare what a program passes them: byte for byte.
INSERT INTO onlyonce.recipes (id, recipe)
    SELECT substr(sha256(raw), 1, 8), raw FROM (SELECT decode('0101' || repeat('00', 24), 'hex') AS raw) r
    ON CONFLICT DO NOTHING;
