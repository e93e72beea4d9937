-- KEYS the hash of what is kept once
-- ARGV the secret that must be there
-- Raises the epoch by one. A hash without the secret has lost more than the epoch.
if redis.call('HGET', KEYS[1], 'secret') ~= ARGV[1] then return false end
local count = string.match(redis.call('HGET', KEYS[1], 'epoch') or '', '^%d+') or '0'
local epoch = plain(tonumber(count) + 1) .. ' ' .. plain(now)
redis.call('HSET', KEYS[1], 'epoch', epoch)
return epoch
