        n, scope, key, key_uuid, id, revision, tombstone_ttl, fence, generation, attempt_id,
        fingerprint, recipe, caller, state, route, method, path, last_error, response_status,
        response_bytes, response_head, response_body, evidence, negatives, inconclusive,
        dead_letter, created_at, last_run_at, completed_at, expires_at, lease_until,
        unknown_since, reconcile_after, delete_at, row_version, notes
    )
    SELECT
        g.n, g.scope, CASE WHEN l.erased THEN '' ELSE g.key END,
        CASE WHEN l.erased THEN NULL ELSE g.key_uuid END, l.id, l.revision, l.tombstone_ttl, l.fence,
        l.generation, l.attempt_id, l.fingerprint, l.recipe, l.caller, l.state, l.route,
        l.method, l.path, l.last_error, l.response_status, l.response_bytes, l.response_head,
        l.response_body, l.evidence, l.negatives, l.inconclusive, l.dead_letter, l.created_at,
        l.last_run_at, l.completed_at, l.expires_at, l.lease_until, l.unknown_since,
        l.reconcile_after, l.delete_at, 1, l.notes
