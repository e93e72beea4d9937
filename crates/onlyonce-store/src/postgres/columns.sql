k.row_version, k.scope, coalesce(k.key, k.key_uuid::text), k.route, k.method, k.path,
    k.revision, k.state::text, k.attempt_id, k.fence, k.generation, k.fingerprint, k.recipe,
    k.caller, k.tombstone_ttl, k.last_error, k.created_at,
    coalesce(k.last_run_at, k.created_at) AS last_run_at, k.completed_at, k.expires_at,
    k.lease_until, k.unknown_since, k.reconcile_after, k.delete_at, k.response_status,
    k.response_bytes, k.response_head, k.evidence, coalesce(k.negatives, 0::smallint) AS negatives,
    coalesce(k.inconclusive, 0::smallint) AS inconclusive,
    coalesce(k.dead_letter, false) AS dead_letter, k.notes
