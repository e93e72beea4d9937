        key = CASE WHEN l.erased THEN '' ELSE k.key END,
        key_uuid = CASE WHEN l.erased THEN NULL ELSE k.key_uuid END,
        revision = l.revision, tombstone_ttl = l.tombstone_ttl, fence = l.fence,
        generation = l.generation, attempt_id = l.attempt_id, fingerprint = l.fingerprint,
        recipe = l.recipe, caller = l.caller, state = l.state, route = l.route,
        method = l.method, path = l.path, last_error = l.last_error,
        response_status = l.response_status, response_bytes = l.response_bytes,
        response_head = l.response_head, response_body = l.response_body,
        evidence = l.evidence, negatives = l.negatives, inconclusive = l.inconclusive,
        dead_letter = l.dead_letter, created_at = l.created_at, last_run_at = l.last_run_at,
        completed_at = l.completed_at, expires_at = l.expires_at, lease_until = l.lease_until,
        unknown_since = l.unknown_since, reconcile_after = l.reconcile_after,
        delete_at = l.delete_at, notes = l.notes, row_version = 1
    FROM input l WHERE k.id = l.id AND k.revision = l.expected
