-- Inserts the keys that are absent, and returns the records of those that are there. A key that
-- another transaction inserted meanwhile comes back as neither: it is asked about again.
WITH clock AS MATERIALIZED (
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now
),
inserted AS MATERIALIZED (
    SELECT unnest(onlyonce.put_new(
        c.now, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19,
        $20
    )) AS id FROM clock c
),
each AS MATERIALIZED (
    SELECT i.id, i.id IN (SELECT n.id FROM inserted n) AS is_new FROM unnest($1) AS i (id)
)
