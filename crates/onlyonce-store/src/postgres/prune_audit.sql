-- Deletes what operators did longer ago than $1 milliseconds, where the key is gone. Rows stand in the
-- order in which they were written, so that only the old ones are looked at.
WITH cutoff AS MATERIALIZED (
    SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint - $1 AS at
),
young AS MATERIALIZED (
    SELECT min(number) AS number FROM (
        SELECT j.number FROM onlyonce.journal j, cutoff c WHERE j.at >= c.at ORDER BY j.number LIMIT 1
    ) first
)
DELETE FROM onlyonce.journal j USING cutoff c, young y
WHERE j.at < c.at AND j.actor = 'operator' AND j.number < coalesce(y.number, 9223372036854775807)
    AND NOT EXISTS (SELECT 1 FROM onlyonce.keys k WHERE k.id = j.id)
    AND NOT EXISTS (SELECT 1 FROM onlyonce.live k WHERE k.id = j.id)
