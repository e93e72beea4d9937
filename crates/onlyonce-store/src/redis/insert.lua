-- KEYS record, answer, numbers, leases, counts, mark
-- ARGV mark, id, revision, tag, eight stamps, block, whether marks may have been evicted
local found = redis.call('GET', KEYS[1])
if found then return { now, 'there', found, redis.call('GET', KEYS[2]) } end
-- A bucket belongs to one secret: hashes made with another would let a key in twice. One without a mark
-- was emptied: what it held would be let in again.
local mark = redis.call('GET', KEYS[6])
if mark ~= ARGV[1] then
    if mark then return { now, 'other' } end
    if ARGV[14] ~= '1' then return { now, 'lost' } end
    redis.call('SET', KEYS[6], ARGV[1])
end
local at, words = times(5)
local number = plain(after_last(KEYS[3]))
redis.call('SET', KEYS[1], table.concat({ ARGV[3], number, ARGV[4], words, ARGV[13] }, '|'))
redis.call('ZADD', KEYS[3], number, ARGV[2])
if at[5] then redis.call('ZADD', KEYS[4], plain(at[5]), ARGV[2]) end
redis.call('HINCRBY', KEYS[5], ARGV[4], 1)
return { now, 'new' }
