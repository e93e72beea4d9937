-- KEYS record, answer, numbers, leases, unknown, due, expiry, counts, journal, own journal
-- ARGV expected, id
local found = redis.call('GET', KEYS[1])
if not found then return { now, 'absent' } end
local revision, _, tag = string.match(found, '^(%d+)|(%d+)|([%w_]*)|')
if revision ~= ARGV[1] then return { now, 'there' } end
redis.call('DEL', KEYS[1], KEYS[2])
for set = 3, 7 do redis.call('ZREM', KEYS[set], ARGV[2]) end
redis.call('HINCRBY', KEYS[8], tag, -1)
for _, row in ipairs(redis.call('ZRANGE', KEYS[10], 0, -1)) do
    if string.byte(row) ~= 49 then
        redis.call('ZREM', KEYS[9], row)
        redis.call('ZREM', KEYS[10], row)
    end
end
return { now, 'done' }
