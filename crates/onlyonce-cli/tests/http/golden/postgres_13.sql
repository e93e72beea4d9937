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
CREATE TYPE onlyonce."row" AS (
	id bytea,
	revision bigint,
	state text,
	attempt_id bytea,
	fence integer,
	generation integer,
	fingerprint bytea,
	recipe bytea,
	caller bytea,
	scope text,
	key text,
	route text,
	method text,
	path text,
	tombstone_ttl bigint,
	last_error text,
	created_at bigint,
	last_run_at bigint,
	completed_at bigint,
	expires_at bigint,
	lease_until bigint,
	unknown_since bigint,
	reconcile_after bigint,
	delete_at bigint,
	response_status integer,
	response_bytes integer,
	response_head bytea,
	response_body bytea,
	evidence bytea,
	negatives integer,
	inconclusive integer,
	dead_letter boolean,
	notes bytea
);
CREATE TYPE onlyonce.state AS ENUM (
    'in_progress',
    'completed',
    'failed_retryable',
    'unknown',
    'expired'
);
CREATE FUNCTION onlyonce.admit(id bytea, scope text, key text, fingerprint bytea, recipe bytea, caller bytea, lease bigint, tombstone_ttl bigint, after_expiry text, route text, method text, path text, OUT outcome text, OUT attempt_token text, OUT status integer, OUT headers jsonb, OUT body bytea, OUT generation integer) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
    attempt bytea := onlyonce.new_attempt();
    now bigint;
    k onlyonce.row;
    held onlyonce.row;
    how text;
BEGIN
    -- A few rounds of "changed meanwhile, look again"; more are a sign that something is wrong.
    FOR round IN 1 .. 32 LOOP
        now := onlyonce.now_ms();
        k := onlyonce.found(admit.id);
        IF k.id IS NULL THEN
            k.id := admit.id;
            k.revision := ('x' || encode(substr(attempt, 11, 6), 'hex'))::bit(48)::bigint & 140737488355327;
            k.state := 'in_progress';
            k.attempt_id := attempt;
            k.fence := 1;
            k.generation := 1;
            k.fingerprint := admit.fingerprint;
            k.recipe := admit.recipe;
            k.caller := admit.caller;
            k.scope := admit.scope;
            k.key := admit.key;
            k.route := admit.route;
            k.method := admit.method;
            k.path := admit.path;
            k.tombstone_ttl := admit.tombstone_ttl;
            k.created_at := now;
            k.last_run_at := now;
            k.lease_until := now + lease;
            -- Inserted by somebody else meanwhile: look again, never assume.
            CONTINUE WHEN NOT onlyonce.put_first(onlyonce.without_answer(k));
            generation := 1;
            how := 'new';
            EXIT;
        END IF;
        IF k.scope <> admit.scope OR k.key <> admit.key AND NOT onlyonce.is_erased(k.notes) THEN
            RAISE EXCEPTION 'onlyonce: a stored record belongs to another key' USING ERRCODE = 'OO003';
        END IF;
        generation := k.generation;
        how := CASE
            WHEN k.state IN ('completed', 'failed_retryable') AND k.expires_at + k.tombstone_ttl <= now
                OR k.state = 'expired' AND k.delete_at <= now THEN 'anew'
            WHEN k.fingerprint IS NULL AND k.state <> 'expired' THEN 'reused'
            -- A redirect sends the client elsewhere under the same key, and often without its credential.
            WHEN k.fingerprint IS NOT NULL AND (k.fingerprint <> admit.fingerprint
                    AND NOT coalesce(k.last_error = 'redirected' AND k.state IN ('failed_retryable', 'expired'), false)
                -- A released key may go over to another caller.
                OR k.caller IS DISTINCT FROM admit.caller
                    AND (k.state <> 'failed_retryable'
                        OR k.expires_at <= now AND k.last_error IS DISTINCT FROM 'redirected')) THEN 'reused'
            WHEN k.state = 'in_progress' AND k.lease_until > now THEN 'in_progress'
            WHEN k.state = 'in_progress' THEN 'lapsed'
            WHEN k.state = 'unknown' THEN 'unknown'
            WHEN k.state = 'expired' OR k.expires_at <= now THEN
                CASE WHEN after_expiry = 'reject' AND k.fingerprint IS NOT NULL THEN 'expired'
                    ELSE 'after_expiry' END
            WHEN k.state = 'failed_retryable' THEN 'again'
            WHEN k.response_status IS NULL THEN 'unknown'
            WHEN k.response_body IS NULL THEN 'not_stored'
            ELSE 'replay'
        END;
        IF how = 'unknown' AND NOT k.dead_letter AND k.reconcile_after - now > 1000
            -- A quarter of the pause between two looks stands, however often a client asks.
            AND EXISTS (SELECT 1 FROM onlyonce.routes r
                WHERE r.route = k.route AND r.reconcile_after IS NOT NULL
                AND 4 * (k.reconcile_after - now) <= 3 * least(
                    r.reconcile_after * (1 << least(k.inconclusive + k.negatives, 16)),
                    3600000)) THEN
            -- Asking the reconciler to hurry is worth a try, not a wait.
            held := onlyonce.found_free(k.id);
            IF held.revision = k.revision THEN
                held.revision := k.revision + 1;
                held.reconcile_after := now + 1000;
                PERFORM onlyonce.put(held);
            END IF;
        END IF;
        EXIT WHEN how NOT IN ('anew', 'again', 'after_expiry', 'lapsed');
        held := onlyonce.found_free(k.id);
        IF held.id IS NULL THEN
            -- A row that somebody's open transaction holds is alive, if it is still the same.
            held := onlyonce.found(k.id);
            CONTINUE WHEN held.revision IS DISTINCT FROM k.revision;
            how := 'in_progress';
            EXIT;
        END IF;
        CONTINUE WHEN held.revision <> k.revision;
        IF how = 'lapsed' THEN
            PERFORM onlyonce.make_unknown(k, now, 'lease_lapsed', 'sweeper');
            CONTINUE;
        END IF;
        PERFORM onlyonce.begin_again(k, now, how, attempt, admit.fingerprint, admit.recipe,
            admit.caller, lease, admit.tombstone_ttl, admit.route, admit.method, admit.path);
        generation := CASE how WHEN 'anew' THEN 1 WHEN 'after_expiry' THEN k.generation + 1
            ELSE k.generation END;
        EXIT;
    END LOOP;
    IF how IN ('new', 'anew', 'again', 'after_expiry') THEN
        outcome := 'execute';
        attempt_token := encode(k.id, 'hex') || encode(attempt, 'hex');
    ELSIF how = 'lapsed' OR how IS NULL THEN
        RAISE EXCEPTION 'onlyonce: the key changes faster than it can be read' USING ERRCODE = 'OO003';
    ELSE
        outcome := how;
        IF how IN ('replay', 'not_stored') THEN
            IF k.response_head IS NULL OR get_byte(k.response_head, 3) = 3 THEN
                RAISE EXCEPTION 'onlyonce: this answer is compressed or encrypted; only a gateway or the library can read it'
                    USING ERRCODE = 'OO003';
            END IF;
            status := k.response_status;
            headers := onlyonce.head_headers(k.response_head);
            body := CASE how WHEN 'replay' THEN k.response_body END;
        END IF;
    END IF;
END
$$;
CREATE FUNCTION onlyonce.as_uuid(id bytea) RETURNS uuid
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT encode(id, 'hex')::uuid
$$;
CREATE FUNCTION onlyonce.begin_again(k onlyonce."row", now bigint, how text, attempt bytea, fingerprint bytea, recipe bytea, caller bytea, lease bigint, tombstone_ttl bigint, route text, method text, path text) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    u onlyonce.row := k;
BEGIN
    u.revision := k.revision + 1;
    u.state := 'in_progress';
    u.attempt_id := attempt;
    u.fence := k.fence + 1;
    u.generation := CASE how WHEN 'again' THEN k.generation
        WHEN 'after_expiry' THEN k.generation + 1 ELSE 1 END;
    -- The fingerprint of the first request stays, with the recipe that later ones are compared under. A
    -- redirect brings another.
    IF how = 'anew' OR k.fingerprint IS NULL OR coalesce(k.last_error, '') = 'redirected' THEN
        u.fingerprint := begin_again.fingerprint;
        u.recipe := begin_again.recipe;
    END IF;
    u.notes := CASE WHEN how <> 'anew' AND k.fingerprint IS NOT NULL THEN onlyonce.only_spelling(k.notes) END;
    u.notes := onlyonce.noted_unreached(u.notes, how = 'again'
        AND (k.fence = 1 OR coalesce(get_byte(k.notes, 1) & 8 <> 0, false))
        AND coalesce(k.last_error, '') IN ('not_sent', 'guard_failed', 'credential_refused'));
    IF onlyonce.is_erased(k.notes) THEN
        -- For as long as the row lives.
        u.notes := set_byte(coalesce(u.notes, '\x0100'::bytea), 1,
            get_byte(coalesce(u.notes, '\x0100'::bytea), 1) | 16);
    END IF;
    u.caller := begin_again.caller;
    u.route := begin_again.route;
    u.method := begin_again.method;
    u.path := CASE WHEN onlyonce.is_erased(k.notes) THEN '' ELSE begin_again.path END;
    u.tombstone_ttl := begin_again.tombstone_ttl;
    u.created_at := CASE how WHEN 'again' THEN k.created_at ELSE now END;
    u.last_run_at := now;
    u.lease_until := now + lease;
    u.completed_at := NULL;
    u.expires_at := NULL;
    u.delete_at := NULL;
    u.last_error := NULL;
    PERFORM onlyonce.put(onlyonce.without_answer(u));
    IF how <> 'anew' THEN
        PERFORM onlyonce.note(now, k,
            CASE how WHEN 'again' THEN 'executed_again' ELSE 'executed_after_expiry' END,
            'in_progress', k.fence + 1, 'executor', NULL);
    END IF;
END
$$;
CREATE FUNCTION onlyonce.complete(attempt_token text, status integer, headers jsonb DEFAULT '{}'::jsonb, body bytea DEFAULT '\x'::bytea, ttl interval DEFAULT NULL::interval) RETURNS text
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT onlyonce.completed(attempt_token, status, headers, body, onlyonce.positive_ms('ttl', ttl))
$$;
CREATE FUNCTION onlyonce.complete_one(the_id uuid, expected bigint, tombstone_ttl bigint, response_status smallint, response_bytes integer, response_head bytea, response_body bytea, completed_at bigint, expires_at bigint, OUT id uuid, OUT now bigint) RETURNS record
    LANGUAGE plpgsql
    AS $$
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
CREATE FUNCTION onlyonce.completed(token text, status integer, headers jsonb, body bytea, ttl bigint) RETURNS text
    LANGUAGE plpgsql
    AS $$
DECLARE
    ended text;
BEGIN
    PERFORM onlyonce.plain_answers_allowed();
    ended := onlyonce.end_attempt(token, 'complete', NULL, status, headers, body, ttl);
    IF ended = 'lost' THEN
        -- The caller's transaction must not commit what somebody else may be doing again.
        RAISE EXCEPTION 'onlyonce: this attempt does not own its key; nothing was settled'
            USING ERRCODE = 'OO001', HINT = 'Roll back. Another attempt may be executing.';
    END IF;
    IF ended = 'already' THEN
        -- Its effect was committed with the completion; this transaction holds a second one.
        RAISE EXCEPTION 'onlyonce: this attempt has completed its key already; nothing was settled'
            USING ERRCODE = 'OO004',
            HINT = 'Roll back, and answer with what is stored. The first effect is committed.';
    END IF;
    RETURN CASE ended WHEN 'written' THEN 'completed' ELSE ended END;
END
$$;
CREATE FUNCTION onlyonce.end_attempt(token text, ending text, error text, status integer, headers jsonb, body bytea, ttl bigint) RETURNS text
    LANGUAGE plpgsql
    AS $_$
DECLARE
    now bigint;
    k onlyonce.row;
    u onlyonce.row;
    keep bigint;
    most bigint;
    whole boolean;
BEGIN
    IF token IS NULL OR token !~ '^[0-9a-f]{64}$' THEN
        RETURN 'lost';
    END IF;
    k := onlyonce.found_locked(decode(left(token, 32), 'hex'));
    IF k.id IS NULL THEN
        RETURN 'lost';
    END IF;
    now := onlyonce.now_ms();
    IF k.attempt_id <> decode(right(token, 32), 'hex') OR k.state = 'expired' THEN
        PERFORM onlyonce.note(now, k, 'duplicate_execution_suspected', k.state, k.fence, 'executor', NULL);
        RETURN 'lost';
    END IF;
    IF k.state = 'completed' AND ending = 'complete' THEN
        IF onlyonce.note_flags(k.notes) & 64 = 0 THEN
            RETURN 'already';
        END IF;
        u := k;
        u.revision := k.revision + 1;
        u.notes := onlyonce.not_attested(k.notes);
        PERFORM onlyonce.put(u);
        PERFORM onlyonce.note(now, k, 'late_result', 'completed', k.fence, 'executor', NULL);
        RETURN 'kept';
    END IF;
    IF k.state = 'completed'
        OR (ending = 'unknown' AND k.state <> 'in_progress')
        OR (ending = 'release' AND k.state = 'failed_retryable') THEN
        RETURN 'kept';
    END IF;
    -- Whoever says that nothing was left behind may be contradicted by what the provider has said.
    IF ending = 'release' AND k.evidence IS NOT NULL AND get_byte(k.evidence, 1) IN (1, 3) THEN
        IF k.state = 'unknown' THEN
            RETURN 'kept';
        END IF;
        PERFORM onlyonce.make_unknown(k, now, error, 'executor');
        RETURN 'written';
    END IF;
    IF ending = 'unknown' THEN
        PERFORM onlyonce.make_unknown(k, now, error, 'executor');
        RETURN 'written';
    END IF;
    SELECT r.ttl, r.max_body_size INTO keep, most FROM onlyonce.routes r WHERE r.route = k.route;
    keep := coalesce(end_attempt.ttl, keep, 86400000);
    whole := body IS NOT NULL AND length(body) <= coalesce(most, length(body))
        AND NOT onlyonce.is_erased(k.notes);
    u := onlyonce.without_answer(k);
    u.revision := k.revision + 1;
    u.expires_at := now + keep;
    u.lease_until := NULL;
    IF ending = 'complete' THEN
        u.state := 'completed';
        u.last_error := NULL;
        u.completed_at := now;
        u.response_status := end_attempt.status;
        u.response_bytes := CASE WHEN whole THEN length(body) ELSE 0 END;
        u.response_head := onlyonce.head(end_attempt.status,
            CASE WHEN onlyonce.is_erased(k.notes) THEN '{}' ELSE end_attempt.headers END, whole);
        u.response_body := CASE WHEN whole THEN body END;
    ELSE
        u.state := 'failed_retryable';
        u.last_error := error;
    END IF;
    PERFORM onlyonce.put(u);
    IF ending = 'release' THEN
        PERFORM onlyonce.note(now, k, 'released', 'failed_retryable', k.fence, 'executor', error);
    ELSIF k.state <> 'in_progress' THEN
        PERFORM onlyonce.note(now, k,
            CASE k.state WHEN 'unknown' THEN 'late_result' ELSE 'release_was_wrong' END,
            'completed', k.fence, 'executor', NULL);
    END IF;
    RETURN 'written';
END
$_$;
CREATE FUNCTION onlyonce.enqueue(target text, payload bytea, ordering_key text DEFAULT NULL::text, headers jsonb DEFAULT '{}'::jsonb, type text DEFAULT ''::text, downstream_key text DEFAULT NULL::text, attempt_token text DEFAULT NULL::text, due_in interval DEFAULT '00:00:00'::interval, aggregatetype text DEFAULT NULL::text, aggregateid text DEFAULT NULL::text, settles text DEFAULT NULL::text, notify boolean DEFAULT true) RETURNS uuid
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    message uuid := gen_random_uuid();
    now bigint := onlyonce.now_ms();
    most bigint := pg_size_bytes(coalesce(
        nullif(current_setting('onlyonce.max_message_bytes', true), ''), '1 MB'));
BEGIN
    IF num_nulls(enqueue.target, enqueue.payload, enqueue.headers, enqueue.type, due_in, enqueue.notify) > 0 THEN
        RAISE EXCEPTION 'onlyonce: target, payload, headers, type, due_in and notify of a message may not be NULL' USING ERRCODE = '22004';
    END IF;
    IF due_in < interval '0' THEN
        RAISE EXCEPTION 'onlyonce: due_in may not be negative; nothing was done' USING ERRCODE = '22023';
    END IF;
    IF jsonb_typeof(enqueue.headers) <> 'object' OR EXISTS (
        SELECT FROM jsonb_each(enqueue.headers) AS h (name, value) WHERE jsonb_typeof(h.value) <> 'string') THEN
        RAISE EXCEPTION 'onlyonce: the headers of a message are an object of name to string'
            USING ERRCODE = '22023';
    END IF;
    IF octet_length(payload) + octet_length(enqueue.headers::text) > most THEN
        RAISE EXCEPTION 'onlyonce: a message of % bytes is larger than onlyonce.max_message_bytes, which is %; it was not left',
            octet_length(payload) + octet_length(enqueue.headers::text), most
            USING ERRCODE = '54000', HINT = 'Leave a reference to what is large, or raise the setting.';
    END IF;
    INSERT INTO onlyonce.outbox (
        id, created_at, due_at, key_id, settles, target, aggregatetype, aggregateid, type,
        ordering_key, downstream_key, headers, payload
    ) VALUES (
        message, now, now + onlyonce.ms(due_in), left(enqueue.attempt_token, 32)::uuid,
        enqueue.settles, enqueue.target, enqueue.aggregatetype, enqueue.aggregateid, enqueue.type,
        enqueue.ordering_key, coalesce(enqueue.downstream_key, replace(message::text, '-', '')),
        enqueue.headers, enqueue.payload
    );
    -- Whoever delivers is woken by the commit.
    IF enqueue.notify THEN
        PERFORM pg_notify('onlyonce', '@' || repeat('0', 32));
    END IF;
    RETURN message;
END
$$;
CREATE FUNCTION onlyonce.fail(attempt_token text, outcome text DEFAULT 'failed_retryable'::text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    ended text;
BEGIN
    -- Whoever says nothing has not said that nothing happened.
    IF outcome IS NULL OR outcome NOT IN ('failed_retryable', 'unknown') THEN
        RAISE EXCEPTION 'onlyonce: an attempt fails as failed_retryable or as unknown' USING ERRCODE = '22023';
    END IF;
    ended := CASE outcome
        WHEN 'unknown' THEN
            onlyonce.end_attempt(attempt_token, 'unknown', 'declared_unknown', NULL, NULL, NULL, NULL)
        ELSE onlyonce.end_attempt(
            attempt_token, 'release', 'declared_not_executed', NULL, NULL, NULL, NULL)
    END;
    -- A release that the provider contradicts is unknown.
    RETURN CASE ended
        WHEN 'written' THEN (onlyonce.found(decode(left(attempt_token, 32), 'hex'))).state
        ELSE ended END;
END
$$;
CREATE FUNCTION onlyonce.fingerprint(scope text, operation text, request bytea) RETURNS bytea
    LANGUAGE sql STABLE
    AS $$
    SELECT onlyonce.hmac(
        onlyonce.signed('fingerprint-key', onlyonce.framed(convert_to(scope, 'UTF8'))),
        onlyonce.framed('onlyonce/fingerprint/1'::bytea) || onlyonce.framed(onlyonce.raw_recipe())
        || onlyonce.framed('SQL'::bytea) || onlyonce.framed(convert_to(operation, 'UTF8'))
        || int8send(0) || '\x00'::bytea || onlyonce.framed(request))
$$;
CREATE FUNCTION onlyonce.found(id bytea) RETURNS onlyonce."row"
    LANGUAGE plpgsql
    AS $$
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
CREATE FUNCTION onlyonce.found_free(id bytea) RETURNS onlyonce."row"
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM 1 FROM onlyonce.live l WHERE l.id = onlyonce.as_uuid(found_free.id) FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        PERFORM 1 FROM onlyonce.keys k WHERE k.id = onlyonce.as_uuid(found_free.id) FOR UPDATE SKIP LOCKED;
    END IF;
    RETURN CASE WHEN FOUND THEN onlyonce.found(id) END;
END
$$;
CREATE FUNCTION onlyonce.found_locked(id bytea) RETURNS onlyonce."row"
    LANGUAGE plpgsql
    AS $$
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
CREATE FUNCTION onlyonce.framed(part bytea) RETURNS bytea
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT int8send(length(part)) || part
$$;
CREATE FUNCTION onlyonce.head(status integer, headers jsonb, stored boolean) RETURNS bytea
    LANGUAGE plpgsql IMMUTABLE
    AS $_$
DECLARE
    block bytea := '';
    count integer := 0;
    one record;
    value bytea;
BEGIN
    IF status IS NULL OR status NOT BETWEEN 200 AND 999 THEN
        RAISE EXCEPTION 'onlyonce: % is not the status of an answer', status USING ERRCODE = '22023';
    END IF;
    IF jsonb_typeof(headers) NOT IN ('object', 'array', 'null') OR jsonb_typeof(headers) = 'array' AND EXISTS (
        SELECT FROM jsonb_array_elements(headers) AS p (pair)
        WHERE CASE jsonb_typeof(p.pair) WHEN 'array' THEN jsonb_array_length(p.pair) ELSE 0 END <> 2) THEN
        RAISE EXCEPTION 'onlyonce: headers are an object of name to string or list of strings, or a list of [name, value]'
            USING ERRCODE = '22023';
    END IF;
    FOR one IN
        SELECT lower(p.pair ->> 0) AS name, p.pair -> 1 AS value
        FROM jsonb_array_elements(
            CASE jsonb_typeof(headers) WHEN 'array' THEN headers ELSE '[]' END) AS p (pair)
        UNION ALL
        SELECT lower(m.name), v.value
        FROM jsonb_each(CASE jsonb_typeof(headers) WHEN 'object' THEN headers ELSE '{}' END) AS m (name, said),
            jsonb_array_elements(
                CASE jsonb_typeof(m.said) WHEN 'array' THEN m.said ELSE jsonb_build_array(m.said) END
            ) AS v (value)
    LOOP
        IF one.name IS NULL OR one.name !~ '^[!#$%&''*+.^_`|~0-9a-z-]+$'
            OR jsonb_typeof(one.value) IS DISTINCT FROM 'string'
            OR (one.value #>> '{}') ~ '[\x01-\x08\x0a-\x1f\x7f]' THEN
            RAISE EXCEPTION 'onlyonce: headers are an object of name to string or list of strings, or a list of [name, value]'
                USING ERRCODE = '22023';
        END IF;
        IF onlyonce.may_be_stored(one.name, status) THEN
            value := convert_to(btrim(one.value #>> '{}', E' \t'), 'UTF8');
            block := block || onlyonce.le(length(one.name), 2) || convert_to(one.name, 'UTF8')
                || onlyonce.le(length(value), 4) || value;
            count := count + 1;
            -- Beyond these no server would send them, and no program could read them back.
            IF count > 1000 OR length(one.name) > 256 OR length(block) > 1048576 THEN
                RAISE EXCEPTION 'onlyonce: an answer has at most 1000 headers, with names of 256 characters, of 1 MiB together'
                    USING ERRCODE = '54000';
            END IF;
        END IF;
    END LOOP;
    RETURN '\x01'::bytea || onlyonce.le(status, 2)
        || CASE WHEN stored THEN '\x01'::bytea ELSE '\x00'::bytea END
        || onlyonce.le(count, 2) || block;
END
$_$;
CREATE FUNCTION onlyonce.head_headers(head bytea) RETURNS jsonb
    LANGUAGE plpgsql IMMUTABLE
    AS $$
DECLARE
    list jsonb := '[]';
    at integer := 6;
    size integer;
    name text;
BEGIN
    IF get_byte(head, 0) <> 1 THEN
        RAISE EXCEPTION 'onlyonce: a stored answer has a form that these functions do not know'
            USING ERRCODE = 'OO003';
    END IF;
    FOR i IN 1 .. get_byte(head, 4) + 256 * get_byte(head, 5) LOOP
        size := get_byte(head, at) + 256 * get_byte(head, at + 1);
        name := convert_from(substr(head, at + 3, size), 'UTF8');
        at := at + 2 + size;
        size := get_byte(head, at) + 256 * get_byte(head, at + 1) + 65536 * get_byte(head, at + 2);
        list := list || jsonb_build_array(jsonb_build_array(
            name, onlyonce.header_text(substr(head, at + 5, size))));
        at := at + 4 + size;
    END LOOP;
    RETURN list;
END
$$;
CREATE FUNCTION onlyonce.header_text(value bytea) RETURNS text
    LANGUAGE plpgsql IMMUTABLE
    AS $$
BEGIN
    RETURN convert_from(value, 'UTF8');
EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character THEN
    RETURN convert_from(value, 'LATIN1');
END
$$;
CREATE FUNCTION onlyonce.hmac(secret bytea, message bytea) RETURNS bytea
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT sha256(
        substr(bit_send(padded.bits # ('x' || repeat('5c', 64))::bit(512)), 5)
        || sha256(substr(bit_send(padded.bits # ('x' || repeat('36', 64))::bit(512)), 5) || message))
    FROM (SELECT ('x' || encode(secret, 'hex') || repeat('0', 64))::bit(512) AS bits) padded
$$;
CREATE FUNCTION onlyonce.is_erased(notes bytea) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT CASE WHEN length(notes) > 1 THEN get_byte(notes, 1) & 16 <> 0 ELSE false END
$$;
CREATE FUNCTION onlyonce.key_as_uuid(key text) RETURNS uuid
    LANGUAGE sql IMMUTABLE
    AS $_$
    SELECT CASE WHEN key ~ '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$' THEN key::uuid END
$_$;
CREATE FUNCTION onlyonce.keys_were_emptied() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    UPDATE onlyonce.meta SET value = '0 0' WHERE name = 'epoch';
    RETURN NULL;
END
$$;
CREATE FUNCTION onlyonce.lapsed(now bigint, at_most integer) RETURNS SETOF onlyonce."row"
    LANGUAGE plpgsql
    AS $$
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
CREATE FUNCTION onlyonce.le(number integer, bytes integer) RETURNS bytea
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT CASE bytes
        WHEN 2 THEN set_byte(set_byte('\x0000'::bytea, 0, number & 255), 1, (number >> 8) & 255)
        ELSE set_byte(set_byte(set_byte(set_byte('\x00000000'::bytea, 0, number & 255),
            1, (number >> 8) & 255), 2, (number >> 16) & 255), 3, (number >> 24) & 255)
    END
$$;
CREATE FUNCTION onlyonce.make_unknown(k onlyonce."row", now bigint, error text, by text) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    u onlyonce.row := k;
    says integer := CASE WHEN k.evidence IS NOT NULL THEN get_byte(k.evidence, 1) END;
    letter text := CASE
        -- The provider has spoken about this attempt, and proven nothing.
        WHEN says = 3 THEN 'the provider contradicts itself'
        WHEN says = 1 THEN NULL
        -- Nobody can ask, or nobody will, so a person is told at once.
        WHEN onlyonce.is_erased(k.notes) THEN 'its key was erased: no provider can be asked about it'
        WHEN EXISTS (SELECT FROM onlyonce.routes r
            WHERE r.route = k.route AND r.reconcile_after IS NULL)
        THEN 'nobody asks the provider: see `reconcile`'
    END;
BEGIN
    u.revision := k.revision + 1;
    u.state := 'unknown';
    u.last_error := error;
    u.lease_until := NULL;
    u.unknown_since := now;
    u.reconcile_after := CASE
        WHEN letter IS NOT NULL THEN NULL
        WHEN says = 1 THEN now
        -- Whoever knows the route decides.
        ELSE now + coalesce((SELECT r.reconcile_after FROM onlyonce.routes r
            WHERE r.route = k.route), 0)
    END;
    IF letter IS NOT NULL THEN u.dead_letter := true; END IF;
    PERFORM onlyonce.put(u);
    PERFORM onlyonce.note(now, k,
        CASE error WHEN 'lease_lapsed' THEN 'lease_lapsed' ELSE 'became_unknown' END,
        'unknown', k.fence, by, error);
    IF letter IS NOT NULL THEN
        PERFORM onlyonce.note(now, k, 'dead_lettered', 'unknown', k.fence, 'reconciler', letter);
    END IF;
END
$$;
CREATE FUNCTION onlyonce.may_be_stored(name text, status integer) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT NOT (
        name IN ('set-cookie', 'age', 'date', 'www-authenticate', 'traceparent', 'tracestate',
            'x-request-id', 'x-correlation-id', 'x-amzn-trace-id', 'server-timing', 'via', 'alt-svc',
            'content-length', 'idempotency-outcome', 'idempotency-attempt', 'idempotency-generation',
            'idempotency-status', 'x-idempotent-replayed', 'connection', 'keep-alive', 'te', 'trailer',
            'transfer-encoding', 'upgrade')
        OR starts_with(name, 'proxy-') OR starts_with(name, 'ratelimit')
        OR starts_with(name, 'x-ratelimit-') OR (status >= 400 AND name IN ('retry-after', 'stripe-should-retry', 'x-should-retry')))
$$;
CREATE FUNCTION onlyonce.ms(duration interval) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT floor(extract(epoch FROM duration) * 1000)::bigint
$$;
CREATE FUNCTION onlyonce.new_attempt() RETURNS bytea
    LANGUAGE sql
    AS $$
    SELECT substr(sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())), 1, 16)
$$;
CREATE FUNCTION onlyonce.not_attested(notes bytea) RETURNS bytea
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT CASE WHEN onlyonce.note_flags(notes) & 191 <> 0
        THEN set_byte(notes, 1, onlyonce.note_flags(notes) & 191) END
$$;
CREATE FUNCTION onlyonce.note(now bigint, k onlyonce."row", event text, to_state text, attempt integer, actor text, detail text) RETURNS void
    LANGUAGE sql
    AS $$
    INSERT INTO onlyonce.journal (at, id, event, from_state, to_state, attempt, actor, detail)
    VALUES (now, onlyonce.as_uuid(k.id), event, k.state, to_state, attempt, actor, detail)
$$;
CREATE FUNCTION onlyonce.note_flags(notes bytea) RETURNS integer
    LANGUAGE plpgsql IMMUTABLE
    AS $$
BEGIN
    IF notes IS NULL THEN
        RETURN 0;
    END IF;
    IF get_byte(notes, 0) <> 1 THEN
        RAISE EXCEPTION 'onlyonce: a record has notes of a form that these functions do not know'
            USING ERRCODE = 'OO003';
    END IF;
    RETURN get_byte(notes, 1);
END
$$;
CREATE FUNCTION onlyonce.noted_unreached(notes bytea, unreached boolean) RETURNS bytea
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT CASE
        WHEN unreached AND notes IS NULL THEN '\x0108'::bytea
        WHEN unreached THEN set_byte(notes, 1, get_byte(notes, 1) | 8)
        WHEN notes IS NULL OR get_byte(notes, 1) & ~8 = 0 THEN NULL
        ELSE set_byte(notes, 1, get_byte(notes, 1) & ~8)
    END
$$;
CREATE FUNCTION onlyonce.now_ms() RETURNS bigint
    LANGUAGE sql
    AS $$
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint
$$;
CREATE FUNCTION onlyonce.only_spelling(notes bytea) RETURNS bytea
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT CASE WHEN onlyonce.note_flags(notes) & 3 <> 0
        THEN set_byte('\x0100'::bytea, 1, onlyonce.note_flags(notes) & 3)
            || substr(notes, CASE WHEN onlyonce.note_flags(notes) & 32 <> 0 THEN 11 ELSE 3 END) END
$$;
CREATE FUNCTION onlyonce.plain_answers_allowed() RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM onlyonce.meta m WHERE m.name = 'plain_settle' AND m.value = 'refused'::bytea) THEN
        RAISE EXCEPTION 'onlyonce: the store encrypts its answers, and these functions cannot'
            USING ERRCODE = 'OO002', HINT = 'store.plain_settle: true lets them write plain answers.';
    END IF;
END
$$;
CREATE FUNCTION onlyonce.positive_ms(name text, duration interval) RETURNS bigint
    LANGUAGE plpgsql IMMUTABLE
    AS $$
BEGIN
    IF onlyonce.ms(duration) < 1 THEN
        RAISE EXCEPTION 'onlyonce: % must be a positive duration, not %; nothing was done', name, duration
            USING ERRCODE = '22023';
    END IF;
    RETURN onlyonce.ms(duration);
END
$$;
CREATE FUNCTION onlyonce.process_once(consumer text, message_id text, retention interval DEFAULT '30 days'::interval) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    now bigint := onlyonce.now_ms();
    lasts bigint := onlyonce.positive_ms('retention', retention);
BEGIN
    IF num_nulls(process_once.consumer, process_once.message_id, retention) > 0 THEN
        RAISE EXCEPTION 'onlyonce: consumer, message_id and retention may not be NULL' USING ERRCODE = '22004';
    END IF;
    INSERT INTO onlyonce.inbox (consumer, message_id, at, keep_until)
    VALUES (process_once.consumer, process_once.message_id, now, now + lasts)
    ON CONFLICT ON CONSTRAINT inbox_pkey DO NOTHING;
    RETURN FOUND;
END
$$;
CREATE FUNCTION onlyonce.put(u onlyonce."row") RETURNS void
    LANGUAGE plpgsql
    AS $$
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
CREATE FUNCTION onlyonce.put_first(u onlyonce."row") RETURNS boolean
    LANGUAGE plpgsql
    AS $$
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
CREATE FUNCTION onlyonce.put_new(bigint, uuid[], bigint[], bigint[], integer[], integer[], uuid[], bytea[], bytea[], bytea[], text[], text[], text[], uuid[], text[], text[], text[], bigint[], bigint[], bigint[], bytea[]) RETURNS uuid[]
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
            row_version, notes
        )
        SELECT
            i.id, i.revision, i.tombstone_ttl, i.fence, i.generation, i.attempt_id, i.fingerprint,
            i.recipe, i.caller, i.state::onlyonce.state, i.scope, i.key, i.key_uuid, i.route,
            i.method, i.path,
            CASE WHEN i.created_at < 0 THEN $1 - i.created_at - 1 ELSE i.created_at END,
            CASE WHEN i.last_run_at < 0 THEN $1 - i.last_run_at - 1 ELSE i.last_run_at END,
            CASE WHEN i.lease_until < 0 THEN $1 - i.lease_until - 1 ELSE i.lease_until END,
            1, i.notes
        FROM unnest($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21)
            AS i (
                id, revision, tombstone_ttl, fence, generation, attempt_id, fingerprint, recipe,
                caller, state, scope, key, key_uuid, route, method, path, created_at, last_run_at,
                lease_until, notes
            )
        WHERE NOT EXISTS (SELECT FROM onlyonce.keys k WHERE k.id = i.id)
        ORDER BY i.id
        ON CONFLICT ON CONSTRAINT live_by_id DO NOTHING RETURNING l.id
    )
    SELECT array_agg(i.id) INTO made FROM inserted i;
    SELECT array_agg(k.id) INTO settled FROM unnest(made) AS m (id) JOIN onlyonce.keys k ON k.id = m.id;
    IF cardinality(settled) > 0 THEN
        DELETE FROM onlyonce.live l WHERE l.id = ANY (settled);
        made := ARRAY(SELECT m.id FROM unnest(made) AS m (id) WHERE m.id <> ALL (settled));
    END IF;
    RETURN made;
END
$_$;
CREATE FUNCTION onlyonce.raw_recipe() RETURNS bytea
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT substr(sha256(decode('0101' || repeat('00', 24), 'hex')), 1, 8)
$$;
CREATE FUNCTION onlyonce.reap(look_at integer DEFAULT 10000) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    now bigint := onlyonce.now_ms();
    place bigint;
    until bigint;
    reaped integer;
    total integer := 0;
BEGIN
    IF num_nulls(look_at) > 0 THEN
        RAISE EXCEPTION 'onlyonce: look_at may not be NULL' USING ERRCODE = '22004';
    END IF;
    INSERT INTO onlyonce.meta (name, value) VALUES ('sql_reaped_to', '0') ON CONFLICT DO NOTHING;
    SELECT convert_from(m.value, 'UTF8')::bigint INTO place FROM onlyonce.meta m
        WHERE m.name = 'sql_reaped_to' FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    SELECT r.until, r.reaped INTO until, total FROM onlyonce.reap_rows(now, place, look_at) r;
    UPDATE onlyonce.meta m SET value = convert_to(coalesce(until, 0)::text, 'UTF8')
        WHERE m.name = 'sql_reaped_to';
    DELETE FROM onlyonce.inbox i WHERE (i.consumer, i.message_id) IN (
        SELECT o.consumer, o.message_id FROM onlyonce.inbox o WHERE o.keep_until <= now LIMIT look_at);
    GET DIAGNOSTICS reaped = ROW_COUNT;
    RETURN total + reaped;
END
$$;
CREATE FUNCTION onlyonce.reap_rows(now bigint, place bigint, look_at integer, OUT until bigint, OUT reaped integer) RETURNS record
    LANGUAGE plpgsql
    AS $$
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
CREATE FUNCTION onlyonce.record_id(scope text, key text) RETURNS bytea
    LANGUAGE sql STABLE
    AS $$
    SELECT substr(onlyonce.signed('record-id', onlyonce.framed(convert_to(scope, 'UTF8'))
        || onlyonce.framed(convert_to(key, 'UTF8'))), 1, 16)
$$;
CREATE FUNCTION onlyonce.renew(attempt_token text, lease interval DEFAULT '00:01:00'::interval, max_execution interval DEFAULT '00:15:00'::interval) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
DECLARE
    now bigint;
    lasts bigint := onlyonce.positive_ms('lease', lease);
    longest bigint := onlyonce.positive_ms('max_execution', max_execution);
    k onlyonce.row;
BEGIN
    IF num_nulls(lease, max_execution) > 0 THEN
        RAISE EXCEPTION 'onlyonce: lease and max_execution of a renewal may not be NULL' USING ERRCODE = '22004';
    END IF;
    IF attempt_token IS NULL OR attempt_token !~ '^[0-9a-f]{64}$' THEN
        RETURN false;
    END IF;
    k := onlyonce.found_locked(decode(left(attempt_token, 32), 'hex'));
    now := onlyonce.now_ms();
    IF k.id IS NULL OR k.attempt_id <> decode(right(attempt_token, 32), 'hex')
        OR k.state <> 'in_progress' OR k.last_run_at + longest <= now THEN
        RETURN false;
    END IF;
    k.revision := k.revision + 1;
    k.lease_until := now + lasts;
    PERFORM onlyonce.put(k);
    RETURN true;
END
$_$;
CREATE FUNCTION onlyonce.reserve(scope text, key text, operation text DEFAULT ''::text, request bytea DEFAULT '\x'::bytea, lease interval DEFAULT '00:01:00'::interval, tombstone_ttl interval DEFAULT '24:00:00'::interval, after_expiry text DEFAULT 'new'::text, route text DEFAULT 'sql'::text, OUT outcome text, OUT attempt_token text, OUT status integer, OUT headers jsonb, OUT body bytea, OUT generation integer) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'onlyonce: reserve cannot see enough in a % transaction',
            upper(current_setting('transaction_isolation'))
            USING ERRCODE = '25000', HINT = 'Reserve in a READ COMMITTED transaction of its own.';
    END IF;
    IF reserve.key IS NULL OR reserve.key !~ '^[\x20-\x7e]+$' OR length(reserve.key) > 256
        OR coalesce(reserve.scope, '') = '' THEN
        RAISE EXCEPTION 'onlyonce: a key is 1 to 256 characters of visible ASCII, in a scope'
            USING ERRCODE = '22023';
    END IF;
    IF num_nulls(operation, request, lease, reserve.tombstone_ttl, after_expiry, reserve.route) > 0 THEN
        RAISE EXCEPTION 'onlyonce: operation, request, lease, tombstone_ttl, after_expiry and route of a reservation may not be NULL' USING ERRCODE = '22004';
    END IF;
    -- A gateway's keys are made by the gateway: whoever could make one first would keep its client out.
    IF (reserve.scope = 'global' OR reserve.scope ~ '^(client|route):') AND NOT (
        SELECT pg_has_role(session_user, n.nspowner, 'MEMBER') FROM pg_namespace n WHERE n.nspname = 'onlyonce'
    ) THEN
        RAISE EXCEPTION 'onlyonce: scopes named global, client:... and route:... are those of gateways; nothing was reserved'
            USING ERRCODE = '42501', HINT = 'Take a scope of your own, such as app:orders; or be a member of the role that owns the schema onlyonce.';
    END IF;
    IF lease < interval '1 second' OR after_expiry NOT IN ('new', 'reject') THEN
        RAISE EXCEPTION 'onlyonce: a lease is at least one second, after_expiry is new or reject'
            USING ERRCODE = '22023';
    END IF;
    SELECT a.outcome, a.attempt_token, a.status, a.headers, a.body, a.generation
    INTO outcome, attempt_token, status, headers, body, generation
    FROM onlyonce.admit(
        onlyonce.record_id(reserve.scope, reserve.key), reserve.scope, reserve.key,
        onlyonce.fingerprint(reserve.scope, operation, request), onlyonce.raw_recipe(), NULL,
        onlyonce.ms(lease), onlyonce.positive_ms('tombstone_ttl', reserve.tombstone_ttl), after_expiry, reserve.route, 'SQL', operation
    ) a;
END
$_$;
CREATE FUNCTION onlyonce.settle(attempt_token text, status integer, headers jsonb, body bytea) RETURNS text
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT onlyonce.completed(attempt_token, status, headers, body, NULL)
$$;
CREATE FUNCTION onlyonce.signed(label text, parts bytea) RETURNS bytea
    LANGUAGE sql STABLE
    AS $$
    SELECT onlyonce.hmac(m.value, onlyonce.framed('onlyonce/1'::bytea)
        || onlyonce.framed(convert_to(label, 'UTF8')) || parts)
    FROM onlyonce.meta m WHERE m.name = 'secret'
$$;
CREATE FUNCTION onlyonce.sweep(at_most integer DEFAULT 1000) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    now bigint := onlyonce.now_ms();
    k onlyonce.row;
    swept integer := 0;
BEGIN
    IF num_nulls(at_most) > 0 THEN
        RAISE EXCEPTION 'onlyonce: at_most may not be NULL' USING ERRCODE = '22004';
    END IF;
    FOR k IN SELECT l.* FROM onlyonce.lapsed(now, at_most) AS l LOOP
        PERFORM onlyonce.make_unknown(k, now, 'lease_lapsed', 'sweeper');
        swept := swept + 1;
    END LOOP;
    RETURN swept;
END
$$;
CREATE FUNCTION onlyonce.without_answer(u onlyonce."row") RETURNS onlyonce."row"
    LANGUAGE plpgsql IMMUTABLE
    AS $$
BEGIN
    u.unknown_since := NULL;
    u.reconcile_after := NULL;
    u.response_status := NULL;
    u.response_bytes := NULL;
    u.response_head := NULL;
    u.response_body := NULL;
    u.evidence := NULL;
    u.negatives := 0;
    u.inconclusive := 0;
    u.dead_letter := false;
    u.notes := onlyonce.without_denial(u.notes);
    RETURN u;
END
$$;
CREATE FUNCTION onlyonce.without_denial(notes bytea) RETURNS bytea
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT CASE
        WHEN get_byte(notes, 1) & 32 = 0 THEN notes
        WHEN get_byte(notes, 1) = 32 THEN NULL
        ELSE set_byte(substr(notes, 1, 2), 1, get_byte(notes, 1) & ~32) || substr(notes, 11)
    END
$$;
CREATE SEQUENCE onlyonce.numbers
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
SET default_tablespace = '';
SET default_table_access_method = heap;
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
    evidence bytea,
    notes bytea
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
    evidence bytea,
    notes bytea
)
WITH (fillfactor='85', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='10000', autovacuum_vacuum_cost_delay='0');
ALTER TABLE ONLY onlyonce.live ALTER COLUMN response_body SET STORAGE EXTERNAL;
CREATE VIEW onlyonce.both_tables AS
 SELECT live.id AS uid,
    live.row_version,
    live.scope,
    COALESCE(live.key, (live.key_uuid)::text) AS key,
    live.route,
    live.method,
    live.path,
    live.revision,
    (live.state)::text AS state,
    uuid_send(live.attempt_id) AS attempt_id,
    live.fence,
    live.generation,
    live.fingerprint,
    live.recipe,
    live.caller,
    live.tombstone_ttl,
    live.last_error,
    live.created_at,
    COALESCE(live.last_run_at, live.created_at) AS last_run_at,
    live.completed_at,
    live.expires_at,
    live.lease_until,
    live.unknown_since,
    live.reconcile_after,
    live.delete_at,
    live.response_status,
    live.response_bytes,
    live.response_head,
    live.response_body,
    live.evidence,
    COALESCE(live.negatives, (0)::smallint) AS negatives,
    COALESCE(live.inconclusive, (0)::smallint) AS inconclusive,
    COALESCE(live.dead_letter, false) AS dead_letter,
    live.notes
   FROM onlyonce.live
UNION ALL
 SELECT keys.id AS uid,
    keys.row_version,
    keys.scope,
    COALESCE(keys.key, (keys.key_uuid)::text) AS key,
    keys.route,
    keys.method,
    keys.path,
    keys.revision,
    (keys.state)::text AS state,
    uuid_send(keys.attempt_id) AS attempt_id,
    keys.fence,
    keys.generation,
    keys.fingerprint,
    keys.recipe,
    keys.caller,
    keys.tombstone_ttl,
    keys.last_error,
    keys.created_at,
    COALESCE(keys.last_run_at, keys.created_at) AS last_run_at,
    keys.completed_at,
    keys.expires_at,
    keys.lease_until,
    keys.unknown_since,
    keys.reconcile_after,
    keys.delete_at,
    keys.response_status,
    keys.response_bytes,
    keys.response_head,
    keys.response_body,
    keys.evidence,
    COALESCE(keys.negatives, (0)::smallint) AS negatives,
    COALESCE(keys.inconclusive, (0)::smallint) AS inconclusive,
    COALESCE(keys.dead_letter, false) AS dead_letter,
    keys.notes
   FROM onlyonce.keys;
CREATE TABLE onlyonce.inbox (
    consumer text NOT NULL,
    message_id text NOT NULL,
    at bigint NOT NULL,
    keep_until bigint NOT NULL
);
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
CREATE TABLE onlyonce.meta (
    name text NOT NULL,
    value bytea NOT NULL
);
CREATE TABLE onlyonce.outbox (
    n bigint NOT NULL,
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    created_at bigint NOT NULL,
    due_at bigint NOT NULL,
    claimed_at bigint,
    claimed_until bigint,
    unclear_since bigint,
    delivered_at bigint,
    attempts integer DEFAULT 0 NOT NULL,
    attempt_id uuid,
    key_id uuid,
    settles text,
    state text DEFAULT 'pending'::text NOT NULL,
    target text NOT NULL,
    aggregatetype text,
    aggregateid text,
    type text DEFAULT ''::text NOT NULL,
    ordering_key text,
    downstream_key text NOT NULL,
    provider_id text,
    last_error text,
    headers jsonb DEFAULT '{}'::jsonb NOT NULL,
    payload bytea NOT NULL
)
WITH (fillfactor='60', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_cost_delay='0');
ALTER TABLE onlyonce.outbox ALTER COLUMN n ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME onlyonce.outbox_n_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE onlyonce.phases (
    id uuid NOT NULL,
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
CREATE TABLE onlyonce.routes (
    route text NOT NULL,
    ttl bigint NOT NULL,
    max_body_size bigint NOT NULL,
    max_execution bigint NOT NULL,
    reconcile_after bigint
);
CREATE TABLE onlyonce.scopes (
    id uuid NOT NULL,
    name text NOT NULL
);
INSERT INTO onlyonce.journal OVERRIDING SYSTEM VALUE VALUES (1, 1794970393907, 1, '0fb3229e-f5af-af09-b2e9-a7619493a9bb', 'became_unknown', 'in_progress', 'unknown', 'executor', 'connection_lost');
INSERT INTO onlyonce.journal OVERRIDING SYSTEM VALUE VALUES (2, 1794970393907, 1, '0fb3229e-f5af-af09-b2e9-a7619493a9bb', 'dead_lettered', 'in_progress', 'unknown', 'reconciler', 'nobody asks the provider: see `reconcile`');
INSERT INTO onlyonce.journal OVERRIDING SYSTEM VALUE VALUES (3, 1794970393912, 1, '61391b25-3753-dbb6-b630-85d025f5b51c', 'released', 'in_progress', 'failed_retryable', 'executor', 'released_status');
INSERT INTO onlyonce.keys VALUES (1, 113548982849050, 1794970393873, NULL, 1794970393889, 2110330393889, NULL, NULL, NULL, NULL, 86400000, 1, 1, 'completed', 43, 201, 1, NULL, NULL, NULL, '971d0404-5249-9f9c-bd8b-8b41328facaf', 'd6ee4d6f-a39b-729a-3971-e745aec98e19', NULL, '\xe52aa0776530a283cb014ecf474c77e6e114e21532f391bc05a9effe0de7d030', '\x1c7e0f6dedee5e17', '\xf17c2db54e7762fd6e96fcf6f00e663e', 'global', 'golden-completed', 'r', 'POST', '/payments', NULL, NULL, '\x0106019b01000095020004036c0000001a00000042617365485454502f302e3620507974686f6e2f332e31312e3710732f676f6c64656e7b22222d7d0b00aee72d330b849bc7c91c2c61304b56391758d9d9062418e7828400f56088', NULL, '\x0101');
INSERT INTO onlyonce.keys VALUES (3, 111958069948121, 1794970393910, NULL, NULL, 2110330393912, NULL, NULL, NULL, NULL, 86400000, 1, 1, 'failed_retryable', NULL, NULL, 1, NULL, NULL, NULL, '61391b25-3753-dbb6-b630-85d025f5b51c', '0c7ed1fd-d564-2ae6-2cd2-65d344fd2ed8', NULL, '\xe52aa0776530a283cb014ecf474c77e6e114e21532f391bc05a9effe0de7d030', '\x1c7e0f6dedee5e17', '\xf17c2db54e7762fd6e96fcf6f00e663e', 'global', 'golden-retryable', 'r', 'POST', '/payments', 'released_status', NULL, NULL, NULL, '\x0101');
INSERT INTO onlyonce.live VALUES (2, 86823915143616, 1794970393898, NULL, NULL, NULL, NULL, 1794970393907, NULL, NULL, 86400000, 1, 1, 'unknown', NULL, NULL, 1, NULL, NULL, true, '0fb3229e-f5af-af09-b2e9-a7619493a9bb', 'd2505e0f-d14c-cadb-718a-cef7449ec1bf', NULL, '\xe52aa0776530a283cb014ecf474c77e6e114e21532f391bc05a9effe0de7d030', '\x1c7e0f6dedee5e17', '\xf17c2db54e7762fd6e96fcf6f00e663e', 'global', 'golden-unknown', 'r', 'POST', '/payments', 'connection_lost', NULL, NULL, NULL, '\x0101');
INSERT INTO onlyonce.meta VALUES ('secret', '\x10e971b0abb243249f91d05dd376d8b871b2f60a7b7a4e818820693e2da56646');
INSERT INTO onlyonce.meta VALUES ('schema_version', '\x3133');
INSERT INTO onlyonce.meta VALUES ('oldest_program', '\x32');
INSERT INTO onlyonce.meta VALUES ('epoch', '\x312031373934393730333933373434');
INSERT INTO onlyonce.meta VALUES ('block/clock', '\x312065663430386463622d626630342d343437662d613462362d63353162393834363236383720313739343936353238323733322031373934393730333933373732202d');
INSERT INTO onlyonce.meta VALUES ('block/scopes', '\x30');
INSERT INTO onlyonce.meta VALUES ('block/scope-routes', '\x30');
INSERT INTO onlyonce.recipes VALUES ('\x718877392798e94f', '\x0101000000000000000000000000000000000000000000000000');
INSERT INTO onlyonce.recipes VALUES ('\x1c7e0f6dedee5e17', '\x020000000000000000000000000000000000000000000000001a000000000000000e6163636570742d76657273696f6e000000000000000a6163636f756e742d6964000000000000000b6170692d76657273696f6e000000000000000c636f6e74656e742d74797065000000000000000869662d6d61746368000000000000000d69662d6e6f6e652d6d61746368000000000000000b6d65726368616e742d6964000000000000000c6f6e2d626568616c662d6f66000000000000000f6f7267616e697a6174696f6e2d6964000000000000000974656e616e742d69640000000000000009782d6163636f756e74000000000000000c782d6163636f756e742d69640000000000000008782d6163742d6173000000000000000d782d6170692d76657273696f6e000000000000000a782d6d65726368616e740000000000000012782d6d65726368616e742d6163636f756e74000000000000000d782d6d65726368616e742d6964000000000000000e782d6f6e2d626568616c662d6f660000000000000008782d6f72672d69640000000000000011782d6f7267616e69736174696f6e2d6964000000000000000e782d6f7267616e697a6174696f6e0000000000000011782d6f7267616e697a6174696f6e2d69640000000000000008782d74656e616e74000000000000000b782d74656e616e742d69640000000000000009782d76657273696f6e000000000000000e782d776f726b73706163652d69640100000000000000000000000000000000');
INSERT INTO onlyonce.routes VALUES ('r', 315360000000, 1048576, 900000, NULL);
INSERT INTO onlyonce.scopes VALUES ('3646b9eb-7191-42cb-f050-adc6bea0b061', 'global');
SELECT pg_catalog.setval('onlyonce.journal_number_seq', 3, true);
SELECT pg_catalog.setval('onlyonce.numbers', 3, true);
SELECT pg_catalog.setval('onlyonce.outbox_n_seq', 1, false);
ALTER TABLE ONLY onlyonce.inbox
    ADD CONSTRAINT inbox_pkey PRIMARY KEY (consumer, message_id);
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
ALTER TABLE ONLY onlyonce.outbox
    ADD CONSTRAINT outbox_pkey PRIMARY KEY (n);
ALTER TABLE ONLY onlyonce.phases
    ADD CONSTRAINT phases_pkey PRIMARY KEY (id);
ALTER TABLE ONLY onlyonce.recipes
    ADD CONSTRAINT recipes_pkey PRIMARY KEY (id);
ALTER TABLE ONLY onlyonce.routes
    ADD CONSTRAINT routes_pkey PRIMARY KEY (route);
CREATE INDEX inbox_by_age ON onlyonce.inbox USING btree (keep_until);
CREATE INDEX journal_by_id ON onlyonce.journal USING btree (id);
CREATE INDEX keys_by_scope ON onlyonce.keys USING btree (hashtext(scope), n);
CREATE INDEX outbox_dead ON onlyonce.outbox USING btree (n) WHERE (state = ANY (ARRAY['dead'::text, 'unknown'::text]));
CREATE INDEX outbox_dead_by_id ON onlyonce.outbox USING btree (id) WHERE (state = ANY (ARRAY['dead'::text, 'unknown'::text]));
CREATE INDEX outbox_due ON onlyonce.outbox USING btree (target, due_at, n) WHERE (state = 'pending'::text);
CREATE INDEX outbox_in_order ON onlyonce.outbox USING btree (target, ordering_key, n) WHERE ((ordering_key IS NOT NULL) AND (state = ANY (ARRAY['pending'::text, 'dead'::text, 'unknown'::text])));
CREATE INDEX phases_unfinished ON onlyonce.phases USING btree (updated_at) WHERE (NOT finished);
CREATE INDEX scopes_by_id ON onlyonce.scopes USING btree (id);
CREATE TRIGGER keys_were_emptied AFTER TRUNCATE ON onlyonce.keys FOR EACH STATEMENT EXECUTE FUNCTION onlyonce.keys_were_emptied();
CREATE TRIGGER keys_were_emptied AFTER TRUNCATE ON onlyonce.live FOR EACH STATEMENT EXECUTE FUNCTION onlyonce.keys_were_emptied();
