-- Writes the rows whose revision is the expected one, with their journal, and returns their ids. A row
-- that stays live, or settled, is updated in place; one that becomes settled, or live again, moves.
-- Rows come from `input`, and the statement waits for one that somebody holds locked; or from those
-- that could be locked at once, and such a row is passed over.
WITH clock AS MATERIALIZED (
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now
),
sent AS MATERIALIZED (
    SELECT * FROM unnest(
        $1::uuid[], $2::bigint[], $3::bigint[], $4::boolean[], $5::bigint[], $6::integer[],
        $7::integer[], $8::uuid[], $9::bytea[], $10::bytea[], $11::bytea[], $12::text[],
        $13::text[], $14::text[], $15::text[], $16::text[], $17::smallint[], $18::integer[],
        $19::bytea[], $20::bytea[], $21::bytea[], $22::smallint[], $23::smallint[],
        $24::boolean[], $25::bigint[], $26::bigint[], $27::bigint[], $28::bigint[],
        $29::bigint[], $30::bigint[], $31::bigint[], $32::bigint[], $33::bytea[]
    ) AS t (
        id, expected, revision, is_live, tombstone_ttl, fence, generation, attempt_id,
        fingerprint, recipe, caller, state, route, method, path, last_error, response_status,
        response_bytes, response_head, response_body, evidence, negatives, inconclusive,
        dead_letter, created_at, last_run_at, completed_at, expires_at, lease_until,
        unknown_since, reconcile_after, delete_at, notes
    )
),
input AS MATERIALIZED (
    SELECT s.id, s.expected, s.revision, s.is_live, s.tombstone_ttl, s.fence, s.generation,
        s.attempt_id, s.fingerprint, s.recipe, s.caller, s.state::onlyonce.state AS state, s.route,
        s.method, s.path, s.last_error, s.response_status, s.response_bytes, s.response_head,
        s.response_body, s.evidence, s.negatives, s.inconclusive, s.dead_letter, s.notes,
        -- A flag of the notes: of an erased record the key goes too, which no other change touches.
        CASE WHEN length(s.notes) > 1 THEN get_byte(s.notes, 1) & 16 <> 0 ELSE false END AS erased,
        CASE WHEN s.created_at < 0 THEN c.now - s.created_at - 1 ELSE s.created_at END AS created_at,
        CASE WHEN s.last_run_at < 0 THEN c.now - s.last_run_at - 1 ELSE s.last_run_at END AS last_run_at,
        CASE WHEN s.completed_at < 0 THEN c.now - s.completed_at - 1 ELSE s.completed_at END AS completed_at,
        CASE WHEN s.expires_at < 0 THEN c.now - s.expires_at - 1 ELSE s.expires_at END AS expires_at,
        CASE WHEN s.lease_until < 0 THEN c.now - s.lease_until - 1 ELSE s.lease_until END AS lease_until,
        CASE WHEN s.unknown_since < 0 THEN c.now - s.unknown_since - 1 ELSE s.unknown_since END AS unknown_since,
        CASE WHEN s.reconcile_after < 0 THEN c.now - s.reconcile_after - 1 ELSE s.reconcile_after END AS reconcile_after,
        CASE WHEN s.delete_at < 0 THEN c.now - s.delete_at - 1 ELSE s.delete_at END AS delete_at
    FROM sent s, clock c
),
