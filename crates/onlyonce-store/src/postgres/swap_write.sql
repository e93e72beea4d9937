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
