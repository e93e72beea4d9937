written AS MATERIALIZED (
    SELECT id FROM stayed_live UNION ALL SELECT id FROM stayed_settled
    UNION ALL SELECT id FROM left_live UNION ALL SELECT id FROM left_settled
),
noted AS (
    INSERT INTO onlyonce.journal (at, id, event, from_state, to_state, attempt, actor, detail)
    SELECT c.now, j.id, j.event, j.from_state, j.to_state, j.attempt, j.actor, j.detail
    FROM clock c, unnest(
        $34::uuid[], $35::text[], $36::text[], $37::text[], $38::integer[], $39::text[],
        $40::text[]
    ) WITH ORDINALITY AS j (id, event, from_state, to_state, attempt, actor, detail, place)
    WHERE j.id IN (SELECT w.id FROM written w)
    ORDER BY j.place
)
SELECT w.id, c.now FROM clock c LEFT JOIN written w ON true
