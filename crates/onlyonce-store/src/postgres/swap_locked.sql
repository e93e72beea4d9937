locked AS MATERIALIZED (
    SELECT k.n, k.revision AS current_revision, i.*
    FROM input i JOIN onlyonce.keys k ON k.id = i.id
    ORDER BY k.id
    FOR NO KEY UPDATE OF k SKIP LOCKED
),
