-- KEYS an entry of the cache
-- ARGV the entry, how many milliseconds it stays, whether it may replace another
-- An entry that begins with a minus says that the answer was taken away: nothing replaces it.
local found = redis.call('GET', KEYS[1])
if found and (ARGV[3] == '0' or string.byte(found) == 45) then return { now, 'there' } end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return { now, 'done' }
