    RETURNING k.n, k.id, l.is_live
),
made_live AS (
    INSERT INTO onlyonce.live (n) SELECT n FROM written WHERE is_live ON CONFLICT DO NOTHING
),
no_longer_live AS (
    DELETE FROM onlyonce.live USING written w WHERE live.n = w.n AND NOT w.is_live
),
noted AS (
    INSERT INTO onlyonce.journal (at, id, event, from_state, to_state, attempt, actor, detail)
    SELECT c.now, j.id, j.event, j.from_state, j.to_state, j.attempt, j.actor, j.detail
    FROM clock c, unnest(
        $33::bytea[], $34::text[], $35::text[], $36::text[], $37::integer[], $38::text[],
        $39::text[]
    ) WITH ORDINALITY AS j (id, event, from_state, to_state, attempt, actor, detail, place)
    WHERE j.id IN (SELECT w.id FROM written w)
    ORDER BY j.place
)
SELECT w.id, c.now FROM clock c LEFT JOIN written w ON true
