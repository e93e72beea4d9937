-- The rows as the functions below see them. Only this file knows how they are stored.

CREATE OR REPLACE FUNCTION onlyonce.as_row(k onlyonce.keys) RETURNS onlyonce.row LANGUAGE plpgsql AS $$
BEGIN
    IF k.row_version <> 1 THEN
        RAISE EXCEPTION 'onlyonce: a stored row has version %, which these functions do not know',
            k.row_version USING ERRCODE = 'OO003';
    END IF;
    RETURN ROW(
        k.id, k.revision, k.state, k.attempt_id, k.fence, k.generation, k.fingerprint, k.recipe,
        k.caller, k.scope, k.key, k.route, k.method, k.path, k.tombstone_ttl, k.last_error,
        k.created_at, k.last_run_at, k.completed_at, k.expires_at, k.lease_until, k.unknown_since,
        k.reconcile_after, k.delete_at, k.response_status, k.response_bytes, k.response_head,
        k.response_body, k.evidence, k.negatives, k.inconclusive, k.dead_letter
    )::onlyonce.row;
END
$$;

-- What is committed, or NULL.
CREATE OR REPLACE FUNCTION onlyonce.found(id bytea) RETURNS onlyonce.row LANGUAGE sql AS $$
    SELECT onlyonce.as_row(k) FROM onlyonce.keys k WHERE k.id = found.id
$$;

-- The same, locked; waits for whoever holds it.
CREATE OR REPLACE FUNCTION onlyonce.found_locked(id bytea) RETURNS onlyonce.row LANGUAGE sql AS $$
    SELECT onlyonce.as_row(k) FROM onlyonce.keys k WHERE k.id = found_locked.id FOR NO KEY UPDATE
$$;

-- The same, locked; NULL also if somebody holds it.
CREATE OR REPLACE FUNCTION onlyonce.found_free(id bytea) RETURNS onlyonce.row LANGUAGE sql AS $$
    SELECT onlyonce.as_row(k) FROM onlyonce.keys k WHERE k.id = found_free.id
    FOR NO KEY UPDATE SKIP LOCKED
$$;

-- Keys in progress whose lease has lapsed, locked; those that somebody holds are alive.
CREATE OR REPLACE FUNCTION onlyonce.lapsed(now bigint, at_most integer) RETURNS SETOF onlyonce.row
LANGUAGE sql AS $$
    SELECT onlyonce.as_row(k) FROM onlyonce.live l JOIN onlyonce.keys k ON k.n = l.n
    WHERE k.state = 'in_progress' AND k.row_version = 1 AND coalesce(k.lease_until, 0) <= now
    LIMIT at_most FOR NO KEY UPDATE OF k SKIP LOCKED
$$;

-- Writes a key that nobody has used. False if somebody else was first.
CREATE OR REPLACE FUNCTION onlyonce.put_first(u onlyonce.row) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    number bigint;
BEGIN
    INSERT INTO onlyonce.keys (
        id, revision, state, attempt_id, fence, generation, fingerprint, recipe, caller, scope, key,
        route, method, path, tombstone_ttl, created_at, last_run_at, lease_until, row_version,
        negatives, inconclusive, dead_letter
    ) VALUES (
        u.id, u.revision, u.state, u.attempt_id, u.fence, u.generation, u.fingerprint, u.recipe,
        u.caller, u.scope, u.key, u.route, u.method, u.path, u.tombstone_ttl, u.created_at,
        u.last_run_at, u.lease_until, 1, 0, 0, false
    ) ON CONFLICT ON CONSTRAINT keys_by_id DO NOTHING RETURNING n INTO number;
    IF number IS NULL THEN
        RETURN false;
    END IF;
    INSERT INTO onlyonce.live (n) VALUES (number);
    RETURN true;
END
$$;

-- Writes a row that the caller has locked.
CREATE OR REPLACE FUNCTION onlyonce.put(u onlyonce.row) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    number bigint;
BEGIN
    UPDATE onlyonce.keys k SET
        revision = u.revision, state = u.state, attempt_id = u.attempt_id, fence = u.fence,
        generation = u.generation, fingerprint = u.fingerprint, recipe = u.recipe, caller = u.caller,
        route = u.route, method = u.method, path = u.path, tombstone_ttl = u.tombstone_ttl,
        last_error = u.last_error, created_at = u.created_at, last_run_at = u.last_run_at,
        completed_at = u.completed_at, expires_at = u.expires_at, lease_until = u.lease_until,
        unknown_since = u.unknown_since, reconcile_after = u.reconcile_after, delete_at = u.delete_at,
        response_status = u.response_status, response_bytes = u.response_bytes,
        response_head = u.response_head, response_body = u.response_body, evidence = u.evidence,
        negatives = u.negatives, inconclusive = u.inconclusive, dead_letter = u.dead_letter
    WHERE k.id = u.id RETURNING k.n INTO number;
    IF u.lease_until IS NULL AND u.unknown_since IS NULL THEN
        DELETE FROM onlyonce.live l WHERE l.n = number;
    ELSE
        INSERT INTO onlyonce.live (n) VALUES (number) ON CONFLICT DO NOTHING;
    END IF;
END
$$;

-- Expires and deletes what is due among the next so many rows after `place`.
CREATE OR REPLACE FUNCTION onlyonce.reap_rows(
    now bigint, place bigint, look_at integer, OUT until bigint, OUT reaped integer
) LANGUAGE plpgsql AS $$
BEGIN
    SELECT max(s.n) INTO until FROM (
        SELECT k.n FROM onlyonce.keys k WHERE k.n > place ORDER BY k.n LIMIT look_at) s;
    WITH due AS MATERIALIZED (
        SELECT k.n, k.id, k.state FROM onlyonce.keys k
        WHERE k.n > place AND k.n <= until AND k.row_version = 1
            AND (k.state IN ('completed', 'failed_retryable') AND k.expires_at <= now
                OR k.state = 'expired' AND k.delete_at <= now)
        FOR UPDATE SKIP LOCKED
    ),
    expired AS (
        UPDATE onlyonce.keys k SET
            revision = k.revision + 1, state = 'expired', delete_at = k.expires_at + k.tombstone_ttl,
            response_status = NULL, response_bytes = NULL, response_head = NULL, response_body = NULL
        FROM due d WHERE k.n = d.n AND d.state <> 'expired'
    ),
    deleted AS (
        DELETE FROM onlyonce.keys k USING due d WHERE k.n = d.n AND d.state = 'expired'
    ),
    forgotten AS (
        DELETE FROM onlyonce.journal j USING due d
        WHERE j.id = d.id AND d.state = 'expired' AND j.actor <> 'operator'
    ),
    left_behind AS (
        DELETE FROM onlyonce.phases p USING due d WHERE p.id = d.id AND d.state = 'expired'
    )
    SELECT count(*) INTO reaped FROM due;
END
$$;

-- Notes a step of `k` that ends in `to_state`.
CREATE OR REPLACE FUNCTION onlyonce.note(
    now bigint, k onlyonce.row, event text, to_state text, attempt integer, actor text, detail text
) RETURNS void LANGUAGE sql AS $$
    INSERT INTO onlyonce.journal (at, id, event, from_state, to_state, attempt, actor, detail)
    VALUES (now, k.id, event, k.state, to_state, attempt, actor, detail)
$$;

