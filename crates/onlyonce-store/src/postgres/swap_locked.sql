locked_live AS MATERIALIZED (
    SELECT k.n FROM sent s JOIN onlyonce.live k ON k.id = s.id
    ORDER BY k.id FOR UPDATE OF k SKIP LOCKED
),
locked_settled AS MATERIALIZED (
    SELECT k.n FROM sent s JOIN onlyonce.keys k ON k.id = s.id
    ORDER BY k.id FOR UPDATE OF k SKIP LOCKED
),
