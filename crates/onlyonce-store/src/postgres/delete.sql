-- Deletes the rows whose revision is the expected one, and returns their ids. What operators did stays
-- in the journal; the rest of the story goes with its key.
WITH doomed AS MATERIALIZED (
    SELECT k.n, k.id
    FROM unnest($1::bytea[], $2::bigint[]) AS i (id, expected)
    JOIN onlyonce.keys k ON k.id = i.id AND k.revision = i.expected
    ORDER BY k.id
    FOR UPDATE OF k SKIP LOCKED
),
deleted AS (
    DELETE FROM onlyonce.keys k USING doomed d WHERE k.n = d.n RETURNING k.n, k.id
),
no_longer_live AS (
    DELETE FROM onlyonce.live USING deleted d WHERE live.n = d.n
),
forgotten AS (
    DELETE FROM onlyonce.journal j USING deleted d WHERE j.id = d.id AND j.actor <> 'operator'
),
left_behind AS (
    DELETE FROM onlyonce.phases p USING deleted d WHERE p.id = d.id
)
SELECT id FROM deleted
