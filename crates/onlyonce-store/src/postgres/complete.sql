-- Nearly every change: a key that was in progress has its answer. Nothing else of the row changes, so
-- little else travels. What it writes is what the statement for any change writes for such a change.
WITH clock AS MATERIALIZED (
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now
),
written AS (
    UPDATE onlyonce.keys k SET
        revision = l.expected + 1, tombstone_ttl = l.tombstone_ttl, state = 'completed',
        response_status = l.response_status, response_bytes = l.response_bytes,
        response_head = l.response_head, response_body = l.response_body,
        completed_at = CASE WHEN l.completed_at < 0 THEN c.now - l.completed_at - 1 ELSE l.completed_at END,
        expires_at = CASE WHEN l.expires_at < 0 THEN c.now - l.expires_at - 1 ELSE l.expires_at END,
        lease_until = NULL, unknown_since = NULL, reconcile_after = NULL, delete_at = NULL,
        last_error = NULL, evidence = NULL, negatives = 0, inconclusive = 0, dead_letter = false,
        row_version = 1
    FROM unnest(
        $1::bytea[], $2::bigint[], $3::bigint[], $4::smallint[], $5::integer[], $6::bytea[],
        $7::bytea[], $8::bigint[], $9::bigint[]
    ) AS l (
        id, expected, tombstone_ttl, response_status, response_bytes, response_head,
        response_body, completed_at, expires_at
    ), clock c
    WHERE k.id = l.id AND k.revision = l.expected
    RETURNING k.n, k.id
),
no_longer_live AS (
    DELETE FROM onlyonce.live USING written w WHERE live.n = w.n
)
SELECT w.id, c.now FROM clock c LEFT JOIN written w ON true
