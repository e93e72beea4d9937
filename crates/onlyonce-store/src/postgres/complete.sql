-- Nearly every change: a key that was in progress has its answer. Nothing else of the row changes, so
-- little else travels. What it writes is what the statement for any change writes for such a change.
WITH clock AS MATERIALIZED (
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now
),
left_live AS (
    DELETE FROM onlyonce.live k USING unnest(
        $1::uuid[], $2::bigint[], $3::bigint[], $4::smallint[], $5::integer[], $6::bytea[],
        $7::bytea[], $8::bigint[], $9::bigint[]
    ) AS l (
        id, expected, tombstone_ttl, response_status, response_bytes, response_head,
        response_body, completed_at, expires_at
    )
    WHERE k.id = l.id AND k.revision = l.expected
    RETURNING
        k.n, k.id, k.revision, k.created_at, k.last_run_at, k.fence, k.generation, k.attempt_id,
        k.fingerprint, k.recipe, k.caller, k.scope, k.key, k.key_uuid, k.route, k.method, k.path,
        l.tombstone_ttl, l.response_status, l.response_bytes, l.response_head, l.response_body,
        l.completed_at, l.expires_at, k.notes
),
settled AS (
    INSERT INTO onlyonce.keys (
        n, id, revision, created_at, last_run_at, fence, generation, attempt_id, fingerprint,
        recipe, caller, scope, key, key_uuid, route, method, path, tombstone_ttl, response_status,
        response_bytes, response_head, response_body, completed_at, expires_at, state, row_version,
        notes
    )
    SELECT
        l.n, l.id, l.revision + 1, l.created_at, l.last_run_at, l.fence, l.generation,
        l.attempt_id, l.fingerprint, l.recipe, l.caller, l.scope, l.key, l.key_uuid, l.route,
        l.method, l.path, l.tombstone_ttl, l.response_status, l.response_bytes, l.response_head,
        l.response_body,
        CASE WHEN l.completed_at < 0 THEN c.now - l.completed_at - 1 ELSE l.completed_at END,
        CASE WHEN l.expires_at < 0 THEN c.now - l.expires_at - 1 ELSE l.expires_at END,
        'completed', 1, l.notes
    FROM left_live l, clock c
)
SELECT w.id, c.now FROM clock c LEFT JOIN left_live w ON true
