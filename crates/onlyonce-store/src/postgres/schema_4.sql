-- Version 6. What a record notes beside its columns: how the key was spelled, how its caller was marked,
-- and what only some records need. Programs of version 5 leave it empty, which reads as the careful default.
ALTER TABLE onlyonce.live ADD COLUMN notes bytea;
ALTER TABLE onlyonce.keys ADD COLUMN notes bytea;
CREATE OR REPLACE VIEW onlyonce.both_tables AS
SELECT id AS uid, row_version, scope, coalesce(key, key_uuid::text) AS key, route, method, path, revision,
    state::text AS state, uuid_send(attempt_id) AS attempt_id, fence, generation, fingerprint, recipe,
    caller, tombstone_ttl, last_error, created_at, coalesce(last_run_at, created_at) AS last_run_at,
    completed_at, expires_at, lease_until, unknown_since, reconcile_after, delete_at, response_status,
    response_bytes, response_head, response_body, evidence, coalesce(negatives, 0::smallint) AS negatives,
    coalesce(inconclusive, 0::smallint) AS inconclusive, coalesce(dead_letter, false) AS dead_letter, notes
FROM onlyonce.live
UNION ALL
SELECT id AS uid, row_version, scope, coalesce(key, key_uuid::text) AS key, route, method, path, revision,
    state::text AS state, uuid_send(attempt_id) AS attempt_id, fence, generation, fingerprint, recipe,
    caller, tombstone_ttl, last_error, created_at, coalesce(last_run_at, created_at) AS last_run_at,
    completed_at, expires_at, lease_until, unknown_since, reconcile_after, delete_at, response_status,
    response_bytes, response_head, response_body, evidence, coalesce(negatives, 0::smallint) AS negatives,
    coalesce(inconclusive, 0::smallint) AS inconclusive, coalesce(dead_letter, false) AS dead_letter, notes
FROM onlyonce.keys;
ALTER TYPE onlyonce.row ADD ATTRIBUTE notes bytea;
-- As before, with notes. Programs of version 5 call the one without.
CREATE FUNCTION onlyonce.put_new(
    -- now, id, revision, tombstone_ttl, fence, generation, attempt_id, fingerprint, recipe, caller
    bigint, uuid[], bigint[], bigint[], integer[], integer[], uuid[], bytea[], bytea[], bytea[],
    -- state, scope, key, key_uuid, route, method, path, created_at, last_run_at, lease_until
    text[], text[], text[], uuid[], text[], text[], text[], bigint[], bigint[], bigint[],
    -- notes
    bytea[]
) RETURNS uuid[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    made uuid[];
    settled uuid[];
BEGIN
    WITH inserted AS (
        INSERT INTO onlyonce.live AS l (
            id, revision, tombstone_ttl, fence, generation, attempt_id, fingerprint, recipe, caller,
            state, scope, key, key_uuid, route, method, path, created_at, last_run_at, lease_until,
            row_version, notes
        )
        SELECT
            i.id, i.revision, i.tombstone_ttl, i.fence, i.generation, i.attempt_id, i.fingerprint,
            i.recipe, i.caller, i.state::onlyonce.state, i.scope, i.key, i.key_uuid, i.route,
            i.method, i.path,
            CASE WHEN i.created_at < 0 THEN $1 - i.created_at - 1 ELSE i.created_at END,
            CASE WHEN i.last_run_at < 0 THEN $1 - i.last_run_at - 1 ELSE i.last_run_at END,
            CASE WHEN i.lease_until < 0 THEN $1 - i.lease_until - 1 ELSE i.lease_until END,
            1, i.notes
        FROM unnest($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21)
            AS i (
                id, revision, tombstone_ttl, fence, generation, attempt_id, fingerprint, recipe,
                caller, state, scope, key, key_uuid, route, method, path, created_at, last_run_at,
                lease_until, notes
            )
        WHERE NOT EXISTS (SELECT FROM onlyonce.keys k WHERE k.id = i.id)
        ORDER BY i.id
        ON CONFLICT ON CONSTRAINT live_by_id DO NOTHING RETURNING l.id
    )
    SELECT array_agg(i.id) INTO made FROM inserted i;
    SELECT array_agg(k.id) INTO settled FROM unnest(made) AS m (id) JOIN onlyonce.keys k ON k.id = m.id;
    IF cardinality(settled) > 0 THEN
        DELETE FROM onlyonce.live l WHERE l.id = ANY (settled);
        made := ARRAY(SELECT m.id FROM unnest(made) AS m (id) WHERE m.id <> ALL (settled));
    END IF;
    RETURN made;
END
$$;
