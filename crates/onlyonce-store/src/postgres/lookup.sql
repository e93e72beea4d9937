-- The records of these ids, those that are there.
WITH clock AS MATERIALIZED (
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now
),
each AS MATERIALIZED (
    SELECT i.id, false AS is_new FROM unnest($1::uuid[]) AS i (id)
)
