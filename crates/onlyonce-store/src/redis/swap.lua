-- KEYS record, answer, leases, unknown, due, expiry, counts, journal, own journal, kept journal
-- ARGV expected, id, revision, tag, eight stamps, block, has a body, body, journal rows
local found = redis.call('GET', KEYS[1])
if not found then return { now, 'absent' } end
local revision, number, tag = string.match(found, '^(%d+)|(%d+)|([%w_]*)|')
if revision ~= ARGV[1] then return { now, 'there', found, redis.call('GET', KEYS[2]) } end
local at, words = times(5)
redis.call('SET', KEYS[1], table.concat({ ARGV[3], number, ARGV[4], words, ARGV[13] }, '|'))
if ARGV[14] == '1' then redis.call('SET', KEYS[2], ARGV[15]) else redis.call('DEL', KEYS[2]) end
place(KEYS[3], ARGV[2], at[5])
place(KEYS[4], ARGV[2], at[6])
place(KEYS[5], ARGV[2], at[7])
-- A tombstone has a time to be deleted at; its answer expired before.
place(KEYS[6], ARGV[2], at[8] or at[4])
if tag ~= ARGV[4] then
    redis.call('HINCRBY', KEYS[7], tag, -1)
    redis.call('HINCRBY', KEYS[7], ARGV[4], 1)
end
journal(16, KEYS[8], KEYS[9], KEYS[10])
return { now, 'done' }
