-- The rows as the functions below see them. Only this file knows how they are stored: what is in
-- progress or unknown in `live`, what is settled in `keys`, and what is empty takes no room.

CREATE OR REPLACE FUNCTION onlyonce.as_uuid(id bytea) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT encode(id, 'hex')::uuid
$$;

-- What is committed, or NULL.
CREATE OR REPLACE FUNCTION onlyonce.found(id bytea) RETURNS onlyonce.row LANGUAGE plpgsql AS $$
DECLARE
    k record;
BEGIN
    SELECT * INTO k FROM onlyonce.both_tables b WHERE b.uid = onlyonce.as_uuid(found.id);
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF k.row_version <> 1 THEN
        RAISE EXCEPTION 'onlyonce: a stored row has version %, which these functions do not know',
            k.row_version USING ERRCODE = 'OO003';
    END IF;
    RETURN ROW(
        found.id, k.revision, k.state, k.attempt_id, k.fence, k.generation, k.fingerprint, k.recipe,
        k.caller, k.scope, k.key, k.route, k.method, k.path, k.tombstone_ttl, k.last_error,
        k.created_at, k.last_run_at, k.completed_at, k.expires_at, k.lease_until, k.unknown_since,
        k.reconcile_after, k.delete_at, k.response_status, k.response_bytes, k.response_head,
        k.response_body, k.evidence, k.negatives, k.inconclusive, k.dead_letter, k.notes
    )::onlyonce.row;
END
$$;

-- The same, locked; waits for whoever holds it.
CREATE OR REPLACE FUNCTION onlyonce.found_locked(id bytea) RETURNS onlyonce.row LANGUAGE plpgsql AS $$
DECLARE
    wanted uuid := onlyonce.as_uuid(id);
BEGIN
    -- A row may move from one table to the other while it is waited for.
    FOR round IN 1 .. 8 LOOP
        PERFORM 1 FROM onlyonce.live l WHERE l.id = wanted FOR UPDATE;
        IF FOUND THEN
            RETURN onlyonce.found(id);
        END IF;
        PERFORM 1 FROM onlyonce.keys k WHERE k.id = wanted FOR UPDATE;
        IF FOUND THEN
            RETURN onlyonce.found(id);
        END IF;
        IF NOT EXISTS (SELECT 1 FROM onlyonce.both_tables b WHERE b.uid = wanted) THEN
            RETURN NULL;
        END IF;
    END LOOP;
    RAISE EXCEPTION 'onlyonce: the key changes faster than it can be read' USING ERRCODE = 'OO003';
END
$$;

-- The same, locked; NULL also if somebody holds it.
CREATE OR REPLACE FUNCTION onlyonce.found_free(id bytea) RETURNS onlyonce.row LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM onlyonce.live l WHERE l.id = onlyonce.as_uuid(found_free.id) FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        PERFORM 1 FROM onlyonce.keys k WHERE k.id = onlyonce.as_uuid(found_free.id) FOR UPDATE SKIP LOCKED;
    END IF;
    RETURN CASE WHEN FOUND THEN onlyonce.found(id) END;
END
$$;

-- Keys in progress whose lease has lapsed, locked; those that somebody holds are alive.
CREATE OR REPLACE FUNCTION onlyonce.lapsed(now bigint, at_most integer) RETURNS SETOF onlyonce.row
LANGUAGE plpgsql AS $$
DECLARE
    uid uuid;
BEGIN
    FOR uid IN
        SELECT l.id FROM onlyonce.live l
        WHERE l.state = 'in_progress' AND l.row_version = 1 AND coalesce(l.lease_until, 0) <= now
        LIMIT at_most FOR UPDATE SKIP LOCKED
    LOOP
        RETURN NEXT onlyonce.found(uuid_send(uid));
    END LOOP;
END
$$;

-- Writes a key that nobody has used. False if somebody else was first.
CREATE OR REPLACE FUNCTION onlyonce.put_first(u onlyonce.row) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    named uuid := onlyonce.key_as_uuid(u.key);
    scope_id uuid := onlyonce.as_uuid(onlyonce.record_id(u.scope, ''));
    nobodys text;
BEGIN
    -- Known before there is a record in it.
    IF NOT EXISTS (SELECT FROM onlyonce.scopes s WHERE s.id = scope_id) THEN
        INSERT INTO onlyonce.scopes (id, name) VALUES (scope_id, u.scope);
        -- A mark of its route, under an id that comes before those of all scopes.
        IF u.scope NOT LIKE 'client:%' AND strpos(u.scope, '/client:') > 0 THEN
            nobodys := split_part(u.scope, '/client:', 1) || '/client:';
            scope_id := onlyonce.as_uuid(
                '\x0000000000000000'::bytea || substr(onlyonce.record_id(nobodys, ''), 1, 8));
            IF NOT EXISTS (SELECT FROM onlyonce.scopes s WHERE s.id = scope_id) THEN
                INSERT INTO onlyonce.scopes (id, name) VALUES (scope_id, nobodys);
            END IF;
        END IF;
    END IF;
    -- No array at all means that somebody else's row stood in the way.
    RETURN coalesce(cardinality(onlyonce.put_new(
        0, ARRAY[onlyonce.as_uuid(u.id)], ARRAY[u.revision], ARRAY[u.tombstone_ttl], ARRAY[u.fence],
        ARRAY[u.generation], ARRAY[onlyonce.as_uuid(u.attempt_id)], ARRAY[u.fingerprint],
        ARRAY[u.recipe], ARRAY[u.caller], ARRAY[u.state], ARRAY[u.scope],
        ARRAY[CASE WHEN named IS NULL THEN u.key END], ARRAY[named], ARRAY[u.route], ARRAY[u.method],
        ARRAY[u.path], ARRAY[u.created_at], ARRAY[u.last_run_at], ARRAY[u.lease_until], ARRAY[u.notes]
    )), 0) = 1;
END
$$;

-- A key that is a UUID in small letters.
CREATE OR REPLACE FUNCTION onlyonce.key_as_uuid(key text) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN key ~ '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$' THEN key::uuid END
$$;

-- Writes a row that the caller has locked: in its place, or, where it settles or is revived, in the
-- other table.
CREATE OR REPLACE FUNCTION onlyonce.put(u onlyonce.row) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    uid uuid := onlyonce.as_uuid(u.id);
    named uuid := onlyonce.key_as_uuid(u.key);
    is_live boolean := u.state IN ('in_progress', 'unknown');
    number bigint;
BEGIN
    IF is_live THEN
        UPDATE onlyonce.live l SET
            revision = u.revision, state = u.state::onlyonce.state,
            attempt_id = onlyonce.as_uuid(u.attempt_id), fence = u.fence, generation = u.generation,
            fingerprint = u.fingerprint, recipe = u.recipe, caller = u.caller, route = u.route,
            method = u.method, path = u.path, tombstone_ttl = u.tombstone_ttl,
            last_error = u.last_error, created_at = u.created_at, last_run_at = u.last_run_at,
            lease_until = u.lease_until, unknown_since = u.unknown_since,
            reconcile_after = u.reconcile_after, evidence = u.evidence, negatives = u.negatives,
            inconclusive = u.inconclusive, dead_letter = u.dead_letter, notes = u.notes
        WHERE l.id = uid;
        IF FOUND THEN
            RETURN;
        END IF;
        DELETE FROM onlyonce.keys k WHERE k.id = uid RETURNING k.n INTO number;
        INSERT INTO onlyonce.live (
            n, id, revision, state, attempt_id, fence, generation, fingerprint, recipe, caller, scope,
            key, key_uuid, route, method, path, tombstone_ttl, last_error, created_at, last_run_at,
            lease_until, unknown_since, reconcile_after, row_version, notes
        ) VALUES (
            number, uid, u.revision, u.state::onlyonce.state, onlyonce.as_uuid(u.attempt_id), u.fence,
            u.generation, u.fingerprint, u.recipe, u.caller, u.scope,
            CASE WHEN named IS NULL THEN u.key END, named, u.route, u.method, u.path, u.tombstone_ttl,
            u.last_error, u.created_at, nullif(u.last_run_at, u.created_at), u.lease_until,
            u.unknown_since, u.reconcile_after, 1, u.notes
        );
        RETURN;
    END IF;
    DELETE FROM onlyonce.live l WHERE l.id = uid RETURNING l.n INTO number;
    IF NOT FOUND THEN
        DELETE FROM onlyonce.keys k WHERE k.id = uid RETURNING k.n INTO number;
    END IF;
    INSERT INTO onlyonce.keys (
        n, id, revision, state, attempt_id, fence, generation, fingerprint, recipe, caller, scope, key,
        key_uuid, route, method, path, tombstone_ttl, last_error, created_at, last_run_at, completed_at,
        expires_at, delete_at, response_status, response_bytes, response_head, response_body, row_version,
        notes
    ) VALUES (
        number, uid, u.revision, u.state::onlyonce.state, onlyonce.as_uuid(u.attempt_id), u.fence,
        u.generation, u.fingerprint, u.recipe, u.caller, u.scope, CASE WHEN named IS NULL THEN u.key END,
        named, u.route, u.method, u.path, u.tombstone_ttl, u.last_error, u.created_at,
        nullif(u.last_run_at, u.created_at), u.completed_at, u.expires_at, u.delete_at,
        u.response_status, u.response_bytes, u.response_head, u.response_body, 1, u.notes
    );
END
$$;

-- Completes one key that was in progress, as `complete.sql` does for many: in an application's own session
-- a statement over arrays would be planned anew each time. `id` is empty where the revision is another one.
CREATE OR REPLACE FUNCTION onlyonce.complete_one(
    the_id uuid, expected bigint, tombstone_ttl bigint, response_status smallint,
    response_bytes integer, response_head bytea, response_body bytea, completed_at bigint,
    expires_at bigint, OUT id uuid, OUT now bigint
) LANGUAGE plpgsql AS $$
DECLARE
    k onlyonce.live;
BEGIN
    now := onlyonce.now_ms();
    DELETE FROM onlyonce.live l WHERE l.id = the_id AND l.revision = expected RETURNING l.* INTO k;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    id := the_id;
    INSERT INTO onlyonce.keys (
        n, id, revision, created_at, last_run_at, fence, generation, attempt_id, fingerprint,
        recipe, caller, scope, key, key_uuid, route, method, path, tombstone_ttl, response_status,
        response_bytes, response_head, response_body, completed_at, expires_at, state, row_version,
        notes
    ) VALUES (
        k.n, k.id, k.revision + 1, k.created_at, k.last_run_at, k.fence, k.generation, k.attempt_id,
        k.fingerprint, k.recipe, k.caller, k.scope, k.key, k.key_uuid, k.route, k.method, k.path,
        complete_one.tombstone_ttl, complete_one.response_status, complete_one.response_bytes,
        complete_one.response_head, complete_one.response_body,
        CASE WHEN complete_one.completed_at < 0 THEN complete_one.now - complete_one.completed_at - 1
            ELSE complete_one.completed_at END,
        CASE WHEN complete_one.expires_at < 0 THEN complete_one.now - complete_one.expires_at - 1
            ELSE complete_one.expires_at END,
        'completed', 1, k.notes
    );
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
    VALUES (now, onlyonce.as_uuid(k.id), event, k.state, to_state, attempt, actor, detail)
$$;

