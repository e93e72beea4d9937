-- The functions for programs in any language. They are the one place outside the machine with rules
-- about states; a test walks the machine's whole table through both and compares every column.
-- They run with the rights of the schema's owner: a program needs USAGE on the schema and EXECUTE on
-- what it calls, and no right to any table.

-- The clock of all of them: the server's, not the transaction's.
CREATE OR REPLACE FUNCTION onlyonce.now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint
$$;

-- Whether a row's notes say that a person's data was erased: a flag in their second byte.
CREATE OR REPLACE FUNCTION onlyonce.is_erased(notes bytea) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN length(notes) > 1 THEN get_byte(notes, 1) & 16 <> 0 ELSE false END
$$;

CREATE OR REPLACE FUNCTION onlyonce.ms(duration interval) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT floor(extract(epoch FROM duration) * 1000)::bigint
$$;

-- The milliseconds of a duration that must be longer than nothing. One that is not would end a memory, a
-- lease or a tombstone before it began, and let a key be executed again. NULL stays NULL.
CREATE OR REPLACE FUNCTION onlyonce.positive_ms(name text, duration interval) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF onlyonce.ms(duration) < 1 THEN
        RAISE EXCEPTION 'onlyonce: % must be a positive duration, not %; nothing was done', name, duration
            USING ERRCODE = '22023';
    END IF;
    RETURN onlyonce.ms(duration);
END
$$;

-- 128 bits that nobody can guess.
CREATE OR REPLACE FUNCTION onlyonce.new_attempt() RETURNS bytea LANGUAGE sql VOLATILE AS $$
    SELECT substr(sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())), 1, 16)
$$;

CREATE OR REPLACE FUNCTION onlyonce.framed(part bytea) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT int8send(length(part)) || part
$$;

-- HMAC-SHA-256 with a secret of 32 bytes: the server has the hash, and xor for strings of bits.
CREATE OR REPLACE FUNCTION onlyonce.hmac(secret bytea, message bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE AS $$
    SELECT sha256(
        substr(bit_send(padded.bits # ('x' || repeat('5c', 64))::bit(512)), 5)
        || sha256(substr(bit_send(padded.bits # ('x' || repeat('36', 64))::bit(512)), 5) || message))
    FROM (SELECT ('x' || encode(secret, 'hex') || repeat('0', 64))::bit(512) AS bits) padded
$$;

-- What only the store's secret makes of a label and parts.
CREATE OR REPLACE FUNCTION onlyonce.signed(label text, parts bytea) RETURNS bytea
LANGUAGE sql STABLE AS $$
    SELECT onlyonce.hmac(m.value, onlyonce.framed('onlyonce/1'::bytea)
        || onlyonce.framed(convert_to(label, 'UTF8')) || parts)
    FROM onlyonce.meta m WHERE m.name = 'secret'
$$;

CREATE OR REPLACE FUNCTION onlyonce.record_id(scope text, key text) RETURNS bytea
LANGUAGE sql STABLE AS $$
    SELECT substr(onlyonce.signed('record-id', onlyonce.framed(convert_to(scope, 'UTF8'))
        || onlyonce.framed(convert_to(key, 'UTF8'))), 1, 16)
$$;

-- The recipe under which requests of SQL programs are compared: byte for byte.
CREATE OR REPLACE FUNCTION onlyonce.raw_recipe() RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT substr(sha256(decode('0101' || repeat('00', 24), 'hex')), 1, 8)
$$;

-- The fingerprint that the library makes of method SQL, this target and this body, byte for byte.
CREATE OR REPLACE FUNCTION onlyonce.fingerprint(scope text, operation text, request bytea)
RETURNS bytea LANGUAGE sql STABLE AS $$
    SELECT onlyonce.hmac(
        onlyonce.signed('fingerprint-key', onlyonce.framed(convert_to(scope, 'UTF8'))),
        onlyonce.framed('onlyonce/fingerprint/1'::bytea) || onlyonce.framed(onlyonce.raw_recipe())
        || onlyonce.framed('SQL'::bytea) || onlyonce.framed(convert_to(operation, 'UTF8'))
        || int8send(0) || '\x00'::bytea || onlyonce.framed(request))
$$;

-- Notes without the time of a denial that counted: a flag, and eight bytes after the flags.
CREATE OR REPLACE FUNCTION onlyonce.without_denial(notes bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN get_byte(notes, 1) & 32 = 0 THEN notes
        WHEN get_byte(notes, 1) = 32 THEN NULL
        ELSE set_byte(substr(notes, 1, 2), 1, get_byte(notes, 1) & ~32) || substr(notes, 11)
    END
$$;

-- The row without an answer, and without what an attempt that was running or unclear left.
CREATE OR REPLACE FUNCTION onlyonce.without_answer(u onlyonce.row) RETURNS onlyonce.row
LANGUAGE plpgsql IMMUTABLE AS $$
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

-- Which headers of an answer are remembered.
CREATE OR REPLACE FUNCTION onlyonce.may_be_stored(name text, status integer) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT NOT (
        name IN ('set-cookie', 'age', 'date', 'www-authenticate', 'traceparent', 'tracestate',
            'x-request-id', 'x-correlation-id', 'x-amzn-trace-id', 'server-timing', 'via', 'alt-svc',
            'content-length', 'idempotency-outcome', 'idempotency-attempt', 'idempotency-generation',
            'idempotency-status', 'x-idempotent-replayed', 'connection', 'keep-alive', 'te', 'trailer',
            'transfer-encoding', 'upgrade')
        OR starts_with(name, 'proxy-') OR starts_with(name, 'ratelimit')
        OR starts_with(name, 'x-ratelimit-') OR (status >= 400 AND name IN ('retry-after', 'stripe-should-retry', 'x-should-retry')))
$$;

-- A number as bytes, the low one first.
CREATE OR REPLACE FUNCTION onlyonce.le(number integer, bytes integer) RETURNS bytea
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE bytes
        WHEN 2 THEN set_byte(set_byte('\x0000'::bytea, 0, number & 255), 1, (number >> 8) & 255)
        ELSE set_byte(set_byte(set_byte(set_byte('\x00000000'::bytea, 0, number & 255),
            1, (number >> 8) & 255), 2, (number >> 16) & 255), 3, (number >> 24) & 255)
    END
$$;

-- The head of an answer as the stores keep it. `headers` is an object of name to string or list of
-- strings, or, where the order of different names matters, a list of [name, value]. NULL has none.
CREATE OR REPLACE FUNCTION onlyonce.head(status integer, headers jsonb, stored boolean) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE AS $$
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
$$;

-- A value of a header as text: UTF-8, or else byte by byte.
CREATE OR REPLACE FUNCTION onlyonce.header_text(value bytea) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN convert_from(value, 'UTF8');
EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character THEN
    RETURN convert_from(value, 'LATIN1');
END
$$;

-- The headers in a head, as a list of [name, value]. A value that is no text is given as it can be.
CREATE OR REPLACE FUNCTION onlyonce.head_headers(head bytea) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE AS $$
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

-- Notes that say, or do not say, that no attempt before the current one reached the handler.
CREATE OR REPLACE FUNCTION onlyonce.noted_unreached(notes bytea, unreached boolean) RETURNS bytea
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN unreached AND notes IS NULL THEN '\x0108'::bytea
        WHEN unreached THEN set_byte(notes, 1, get_byte(notes, 1) | 8)
        WHEN notes IS NULL OR get_byte(notes, 1) & ~8 = 0 THEN NULL
        ELSE set_byte(notes, 1, get_byte(notes, 1) & ~8)
    END
$$;

-- The flags in a record's notes, as the stores write them: 1 and 2 say how the key was spelled, 32 that a
-- time follows, and 64 (`attested`) that somebody else's word completed the key and its attempt has
-- committed no effect of its own since.
CREATE OR REPLACE FUNCTION onlyonce.note_flags(notes bytea) RETURNS integer LANGUAGE plpgsql IMMUTABLE AS $$
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

-- The notes of an attested key whose attempt commits its effect now.
CREATE OR REPLACE FUNCTION onlyonce.not_attested(notes bytea) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN onlyonce.note_flags(notes) & 191 <> 0
        THEN set_byte(notes, 1, onlyonce.note_flags(notes) & 191) END
$$;

-- What the next attempt keeps of the notes: how the key was spelled.
CREATE OR REPLACE FUNCTION onlyonce.only_spelling(notes bytea) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN onlyonce.note_flags(notes) & 3 <> 0
        THEN set_byte('\x0100'::bytea, 1, onlyonce.note_flags(notes) & 3)
            || substr(notes, CASE WHEN onlyonce.note_flags(notes) & 32 <> 0 THEN 11 ELSE 3 END) END
$$;

-- The next life or the next attempt of a key that is there. `how` says which.
CREATE OR REPLACE FUNCTION onlyonce.begin_again(
    k onlyonce.row, now bigint, how text, attempt bytea, fingerprint bytea, recipe bytea, caller bytea,
    lease bigint, tombstone_ttl bigint, route text, method text, path text
) RETURNS void LANGUAGE plpgsql AS $$
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
    u.notes := onlyonce.noted_unreached(u.notes, how = 'anew'
        OR (k.fence = 1 OR coalesce(get_byte(k.notes, 1) & 8 <> 0, false))
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

-- Nobody knows how this attempt ended.
CREATE OR REPLACE FUNCTION onlyonce.make_unknown(k onlyonce.row, now bigint, error text, by text)
RETURNS void LANGUAGE plpgsql AS $$
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

-- A request meets what is remembered of its key. The answers are those of the machine.
CREATE OR REPLACE FUNCTION onlyonce.admit(
    id bytea, scope text, key text, fingerprint bytea, recipe bytea, caller bytea, lease bigint,
    tombstone_ttl bigint, after_expiry text, route text, method text, path text,
    OUT outcome text, OUT attempt_token text, OUT status integer, OUT headers jsonb, OUT body bytea,
    OUT generation integer
) LANGUAGE plpgsql AS $$
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

-- The end of an attempt meets its key. Says `written`, `kept` or `lost`; and `already` where an attempt that
-- has completed its key would do so again. Whoever is told `written` or `kept` of a completion may commit
-- its effect: both have written to the row, so that of any number of transactions one can.
CREATE OR REPLACE FUNCTION onlyonce.end_attempt(
    token text, ending text, error text, status integer, headers jsonb, body bytea, ttl bigint
) RETURNS text LANGUAGE plpgsql AS $$
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
$$;

-- Answers would be written as they are. Where the store encrypts them, somebody must have allowed it.
CREATE OR REPLACE FUNCTION onlyonce.plain_answers_allowed() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM onlyonce.meta m WHERE m.name = 'plain_settle' AND m.value = 'refused'::bytea) THEN
        RAISE EXCEPTION 'onlyonce: the store encrypts its answers, and these functions cannot'
            USING ERRCODE = 'OO002', HINT = 'store.plain_settle: true lets them write plain answers.';
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION onlyonce.completed(
    token text, status integer, headers jsonb, body bytea, ttl bigint
) RETURNS text LANGUAGE plpgsql AS $$
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

-- Claims a key, or says what is known of it. In a transaction of its own, before the business one: under
-- one snapshot for all statements nobody sees that the key was settled since, and it would be done twice.
-- outcome: execute | replay | in_progress | unknown | reused | not_stored | expired
CREATE OR REPLACE FUNCTION onlyonce.reserve(
    scope text, key text, operation text DEFAULT '', request bytea DEFAULT '',
    lease interval DEFAULT '60 seconds', tombstone_ttl interval DEFAULT '24 hours',
    after_expiry text DEFAULT 'new', route text DEFAULT 'sql',
    OUT outcome text, OUT attempt_token text, OUT status integer, OUT headers jsonb, OUT body bytea,
    OUT generation integer
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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
$$;

-- Completes the key in the caller's transaction, once: `completed`, or `kept` where an operator or the
-- provider had said so before. Everybody else raises. A body of NULL is remembered as not stored.
CREATE OR REPLACE FUNCTION onlyonce.complete(
    attempt_token text, status integer, headers jsonb DEFAULT '{}', body bytea DEFAULT '',
    ttl interval DEFAULT NULL
) RETURNS text LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT onlyonce.completed(attempt_token, status, headers, body, onlyonce.positive_ms('ttl', ttl))
$$;

-- The same for the gateway's own record, by the token in `Idempotency-Attempt`.
CREATE OR REPLACE FUNCTION onlyonce.settle(attempt_token text, status integer, headers jsonb, body bytea)
RETURNS text LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT onlyonce.completed(attempt_token, status, headers, body, NULL)
$$;

-- The attempt left nothing behind, or (`unknown`) nobody can tell. Says what the key is now; `lost` if
-- the attempt does not own it.
CREATE OR REPLACE FUNCTION onlyonce.fail(attempt_token text, outcome text DEFAULT 'failed_retryable')
RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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

-- A sign of life. False: the attempt does not own its key any more, or has run for too long.
CREATE OR REPLACE FUNCTION onlyonce.renew(
    attempt_token text, lease interval DEFAULT '60 seconds', max_execution interval DEFAULT '15 minutes'
) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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
$$;

-- Leaves a message in the caller's transaction. Every delivery of it carries the same key downstream. A
-- transaction that is to be prepared must say `notify => false`: PostgreSQL prepares none that notifies.
CREATE OR REPLACE FUNCTION onlyonce.enqueue(
    target text, payload bytea, ordering_key text DEFAULT NULL, headers jsonb DEFAULT '{}',
    type text DEFAULT '', downstream_key text DEFAULT NULL, attempt_token text DEFAULT NULL,
    due_in interval DEFAULT '0 seconds', aggregatetype text DEFAULT NULL,
    aggregateid text DEFAULT NULL, settles text DEFAULT NULL, notify boolean DEFAULT true
) RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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

-- True once for each message of a consumer. The effect goes into the same transaction. A second
-- transaction with the same message waits for the first, since only its end decides.
CREATE OR REPLACE FUNCTION onlyonce.process_once(
    consumer text, message_id text, retention interval DEFAULT '30 days'
) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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

-- Turns up to so many keys whose lease has lapsed into `unknown`; says how many. A row that somebody
-- holds locked is alive.
CREATE OR REPLACE FUNCTION onlyonce.sweep(at_most integer DEFAULT 1000) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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

-- Expires and deletes what is due among the next so many rows, and forgets old messages; says how many
-- rows it changed. Never what is in progress or unknown.
CREATE OR REPLACE FUNCTION onlyonce.reap(look_at integer DEFAULT 10000) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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

-- Whoever empties the tables of the keys sets the store back to its beginning: gateways that have seen its
-- epoch higher refuse it until an operator accepts what is missing.
CREATE OR REPLACE FUNCTION onlyonce.keys_were_emptied() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE onlyonce.meta SET value = '0 0' WHERE name = 'epoch';
    RETURN NULL;
END
$$;
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgname = 'keys_were_emptied' AND tgrelid = 'onlyonce.keys'::regclass) THEN
        CREATE TRIGGER keys_were_emptied AFTER TRUNCATE ON onlyonce.keys
            EXECUTE FUNCTION onlyonce.keys_were_emptied();
    END IF;
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgname = 'keys_were_emptied' AND tgrelid = 'onlyonce.live'::regclass) THEN
        CREATE TRIGGER keys_were_emptied AFTER TRUNCATE ON onlyonce.live
            EXECUTE FUNCTION onlyonce.keys_were_emptied();
    END IF;
END $$;

REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA onlyonce FROM PUBLIC;
