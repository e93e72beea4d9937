-- Deletes the rows whose revision is the expected one, and returns their ids. What operators did stays
-- in the journal; the rest of the story goes with its key.
WITH input AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::bigint[]) AS i (id, expected)
),
doomed AS MATERIALIZED (
    SELECT k.n
    FROM input i JOIN onlyonce.keys k ON k.id = i.id AND k.revision = i.expected
    ORDER BY k.id
    FOR UPDATE OF k SKIP LOCKED
),
doomed_live AS MATERIALIZED (
    SELECT k.n
    FROM input i JOIN onlyonce.live k ON k.id = i.id AND k.revision = i.expected
    ORDER BY k.id
    FOR UPDATE OF k SKIP LOCKED
),
deleted AS (
    DELETE FROM onlyonce.keys k USING doomed d WHERE k.n = d.n RETURNING k.id
),
deleted_live AS (
    DELETE FROM onlyonce.live k USING doomed_live d WHERE k.n = d.n RETURNING k.id
),
gone AS MATERIALIZED (
    SELECT id FROM deleted UNION ALL SELECT id FROM deleted_live
),
forgotten AS (
    DELETE FROM onlyonce.journal j USING gone d WHERE j.id = d.id AND j.actor <> 'operator'
),
left_behind AS (
    DELETE FROM onlyonce.phases p USING gone d WHERE p.id = d.id
)
SELECT id FROM gone
