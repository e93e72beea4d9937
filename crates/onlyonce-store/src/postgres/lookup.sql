-- The records of these ids, those that are there.
WITH clock AS MATERIALIZED (
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now
)
SELECT
    k.id, k.row_version, k.scope, k.key, k.route, k.method, k.path, k.revision, k.state,
    k.attempt_id, k.fence, k.generation, k.fingerprint, k.recipe, k.caller, k.tombstone_ttl,
    k.last_error, k.created_at, k.last_run_at, k.completed_at, k.expires_at, k.lease_until,
    k.unknown_since, k.reconcile_after, k.delete_at, k.response_status, k.response_bytes,
    k.response_head, k.evidence, k.negatives, k.inconclusive, k.dead_letter, k.response_body, false AS is_new, c.now
FROM clock c LEFT JOIN (
    unnest($1::bytea[]) AS i (id) JOIN onlyonce.keys k ON k.id = i.id
) ON true
