-- Inserts the keys that are absent, and returns the records of those that are there. A key that
-- another transaction inserted meanwhile comes back as neither: it is asked about again.
WITH clock AS MATERIALIZED (
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now
),
input AS MATERIALIZED (
    SELECT * FROM unnest(
        $1::bytea[], $2::bigint[], $3::bigint[], $4::integer[], $5::integer[], $6::bytea[],
        $7::bytea[], $8::bytea[], $9::bytea[], $10::text[], $11::text[], $12::text[],
        $13::text[], $14::text[], $15::text[], $16::bigint[], $17::bigint[], $18::bigint[]
    ) AS t (
        id, revision, tombstone_ttl, fence, generation, attempt_id, fingerprint, recipe,
        caller, state, scope, key, route, method, path, created_at, last_run_at, lease_until
    )
),
inserted AS (
    INSERT INTO onlyonce.keys (
        id, revision, tombstone_ttl, fence, generation, attempt_id, fingerprint, recipe,
        caller, state, scope, key, route, method, path, created_at, last_run_at, lease_until,
        row_version, negatives, inconclusive, dead_letter
    )
    SELECT
        i.id, i.revision, i.tombstone_ttl, i.fence, i.generation, i.attempt_id, i.fingerprint,
        i.recipe, i.caller, i.state, i.scope, i.key, i.route, i.method, i.path,
        CASE WHEN i.created_at < 0 THEN c.now - i.created_at - 1 ELSE i.created_at END,
        CASE WHEN i.last_run_at < 0 THEN c.now - i.last_run_at - 1 ELSE i.last_run_at END,
        CASE WHEN i.lease_until < 0 THEN c.now - i.lease_until - 1 ELSE i.lease_until END, 1,
        0, 0, false
    FROM input i, clock c
    ORDER BY i.id
    ON CONFLICT (id) DO NOTHING
    RETURNING n, id
),
found AS MATERIALIZED (
    SELECT
        k.id, k.row_version, k.scope, k.key, k.route, k.method, k.path, k.revision, k.state,
        k.attempt_id, k.fence, k.generation, k.fingerprint, k.recipe, k.caller,
        k.tombstone_ttl, k.last_error, k.created_at, k.last_run_at, k.completed_at,
        k.expires_at, k.lease_until, k.unknown_since, k.reconcile_after, k.delete_at,
        k.response_status, k.response_bytes, k.response_head, k.evidence, k.negatives,
        k.inconclusive, k.dead_letter, k.response_body
    FROM input i JOIN onlyonce.keys k ON k.id = i.id
    WHERE i.id NOT IN (SELECT n.id FROM inserted n)
),
made_live AS (
    INSERT INTO onlyonce.live (n) SELECT n FROM inserted
)
SELECT r.*, c.now FROM clock c LEFT JOIN (
    SELECT
        id, NULL::smallint AS row_version, NULL::text AS scope, NULL::text AS key,
        NULL::text AS route, NULL::text AS method, NULL::text AS path,
        NULL::bigint AS revision, NULL::text AS state, NULL::bytea AS attempt_id,
        NULL::integer AS fence, NULL::integer AS generation, NULL::bytea AS fingerprint,
        NULL::bytea AS recipe, NULL::bytea AS caller, NULL::bigint AS tombstone_ttl,
        NULL::text AS last_error, NULL::bigint AS created_at, NULL::bigint AS last_run_at,
        NULL::bigint AS completed_at, NULL::bigint AS expires_at, NULL::bigint AS lease_until,
        NULL::bigint AS unknown_since, NULL::bigint AS reconcile_after,
        NULL::bigint AS delete_at, NULL::smallint AS response_status,
        NULL::integer AS response_bytes, NULL::bytea AS response_head, NULL::bytea AS evidence,
        NULL::smallint AS negatives, NULL::smallint AS inconclusive,
        NULL::boolean AS dead_letter, NULL::bytea AS response_body,
        true AS is_new
    FROM inserted
    UNION ALL
    SELECT found.*, false FROM found
) r ON true
