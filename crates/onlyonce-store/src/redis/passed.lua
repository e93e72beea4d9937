-- KEYS sets of ids by time, of one bucket or, where there is one server, of many
-- ARGV how many of each, then the earliest time of each
local found = { now }
for i = 1, #KEYS do
    found[i + 1] = redis.call('ZRANGEBYSCORE', KEYS[i], ARGV[i + 1], plain(now), 'WITHSCORES',
        'LIMIT', 0, ARGV[1])
end
return found
