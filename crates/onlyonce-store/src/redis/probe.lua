-- KEYS the hash of what is kept once
-- ARGV the secret that must be there
-- Puts nothing back: a hash without the secret has lost more than the secret.
local found = redis.call('HMGET', KEYS[1], 'secret', 'version')
if found[1] == ARGV[1] then redis.call('HSET', KEYS[1], 'probed_at', plain(now)) end
return found
