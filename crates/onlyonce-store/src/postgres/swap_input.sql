-- Writes the rows whose revision is the expected one, with their journal, and returns their ids. Rows
-- come from `input`, and the statement waits for one that somebody holds locked; or from `locked`, and
-- such a row is passed over.
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
