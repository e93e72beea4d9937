-- Writes the rows whose revision is the expected one, with their journal, and returns their ids. It
-- waits for a row that somebody holds locked, as long as lock_timeout allows.
WITH clock AS MATERIALIZED (
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now
),
input AS MATERIALIZED (
    SELECT * FROM unnest(
        $1::bytea[], $2::bigint[], $3::bigint[], $4::boolean[], $5::bigint[], $6::integer[],
        $7::integer[], $8::bytea[], $9::bytea[], $10::bytea[], $11::bytea[], $12::text[],
        $13::text[], $14::text[], $15::text[], $16::text[], $17::smallint[], $18::integer[],
        $19::bytea[], $20::bytea[], $21::bytea[], $22::smallint[], $23::smallint[],
        $24::boolean[], $25::bigint[], $26::bigint[], $27::bigint[], $28::bigint[],
        $29::bigint[], $30::bigint[], $31::bigint[], $32::bigint[]
    ) AS t (
        id, expected, revision, is_live, tombstone_ttl, fence, generation, attempt_id,
        fingerprint, recipe, caller, state, route, method, path, last_error, response_status,
        response_bytes, response_head, response_body, evidence, negatives, inconclusive,
        dead_letter, created_at, last_run_at, completed_at, expires_at, lease_until,
        unknown_since, reconcile_after, delete_at
    )
),
written AS (
    UPDATE onlyonce.keys k SET
        revision = l.revision, tombstone_ttl = l.tombstone_ttl, fence = l.fence,
        generation = l.generation, attempt_id = l.attempt_id, fingerprint = l.fingerprint,
        recipe = l.recipe, caller = l.caller, state = l.state, route = l.route,
        method = l.method, path = l.path, last_error = l.last_error,
        response_status = l.response_status, response_bytes = l.response_bytes,
        response_head = l.response_head, response_body = l.response_body,
        evidence = l.evidence, negatives = l.negatives, inconclusive = l.inconclusive,
        dead_letter = l.dead_letter,
        created_at = CASE WHEN l.created_at < 0 THEN c.now - l.created_at - 1 ELSE l.created_at END,
        last_run_at = CASE WHEN l.last_run_at < 0 THEN c.now - l.last_run_at - 1 ELSE l.last_run_at END,
        completed_at = CASE WHEN l.completed_at < 0 THEN c.now - l.completed_at - 1 ELSE l.completed_at END,
        expires_at = CASE WHEN l.expires_at < 0 THEN c.now - l.expires_at - 1 ELSE l.expires_at END,
        lease_until = CASE WHEN l.lease_until < 0 THEN c.now - l.lease_until - 1 ELSE l.lease_until END,
        unknown_since = CASE WHEN l.unknown_since < 0 THEN c.now - l.unknown_since - 1 ELSE l.unknown_since END,
        reconcile_after = CASE WHEN l.reconcile_after < 0 THEN c.now - l.reconcile_after - 1 ELSE l.reconcile_after END,
        delete_at = CASE WHEN l.delete_at < 0 THEN c.now - l.delete_at - 1 ELSE l.delete_at END,
        row_version = 1
    FROM input l, clock c
    WHERE k.id = l.id AND k.revision = l.expected
    RETURNING k.n, k.id, l.is_live
),
made_live AS (
    INSERT INTO onlyonce.live (n) SELECT n FROM written WHERE is_live ON CONFLICT DO NOTHING
),
no_longer_live AS (
    DELETE FROM onlyonce.live USING written w WHERE live.n = w.n AND NOT w.is_live
),
noted AS (
    INSERT INTO onlyonce.journal (at, id, event, from_state, to_state, attempt, actor, detail)
    SELECT c.now, j.id, j.event, j.from_state, j.to_state, j.attempt, j.actor, j.detail
    FROM clock c, unnest(
        $33::bytea[], $34::text[], $35::text[], $36::text[], $37::integer[], $38::text[],
        $39::text[]
    ) WITH ORDINALITY AS j (id, event, from_state, to_state, attempt, actor, detail, place)
    WHERE j.id IN (SELECT w.id FROM written w)
    ORDER BY j.place
)
SELECT w.id, c.now FROM clock c LEFT JOIN written w ON true
