-- KEYS record, journal, own journal, kept journal
-- ARGV a row that operators wrote
if redis.call('EXISTS', KEYS[1]) == 1 then return { now, 'there' } end
for set = 2, 4 do redis.call('ZREM', KEYS[set], ARGV[1]) end
return { now, 'done' }
