-- What every script begins with. Scripts compare a revision and write; they hold no rule about states.
--
-- A record is one string: revision|number|tag|eight times|block. The tag is a word that records are
-- counted by. A stamp is empty for never, a number for a time that stays, or +number for so many
-- milliseconds from this server's now.
local clock = redis.call('TIME')
local micros = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local now = math.floor(micros / 1000)

local function plain(number) return string.format('%.0f', number) end

local function resolve(stamp)
    if stamp == '' then return nil end
    if string.byte(stamp) == 43 then return now + tonumber(string.sub(stamp, 2)) end
    return tonumber(stamp)
end

-- The times from ARGV[first] on, resolved, and as they are stored.
local function times(first)
    local at, words = {}, {}
    for i = 1, 8 do
        at[i] = resolve(ARGV[first + i - 1])
        words[i] = at[i] and plain(at[i]) or ''
    end
    return at, table.concat(words, ',')
end

-- Puts a member into a set by its time, or takes it out.
local function place(set, member, at)
    if at then
        redis.call('ZADD', set, plain(at), member)
    else
        redis.call('ZREM', set, member)
    end
end

-- A number for a new member: the time, but always more than the last one in this bucket.
local function after_last(set)
    local last = redis.call('ZREVRANGE', set, 0, 0, 'WITHSCORES')
    if last[2] and tonumber(last[2]) >= micros then return tonumber(last[2]) + 1 end
    return micros
end

-- Writes journal rows from ARGV[first] on. The first byte of a row says whether it outlives its key.
local function journal(first, all, own, kept)
    if not ARGV[first] then return end
    local number = after_last(all)
    for i = first, #ARGV do
        local row = string.sub(ARGV[i], 1, 1) .. plain(number) .. '|' .. plain(now) .. '|'
            .. string.sub(ARGV[i], 2)
        redis.call('ZADD', all, plain(number), row)
        redis.call('ZADD', own, plain(number), row)
        if string.byte(row) == 49 then redis.call('ZADD', kept, plain(now), row) end
        number = number + 1
    end
end
