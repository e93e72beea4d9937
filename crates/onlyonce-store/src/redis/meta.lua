-- KEYS the hash of what is kept once
-- ARGV a secret to begin with, the version of the layout
redis.call('HSETNX', KEYS[1], 'secret', ARGV[1])
redis.call('HSETNX', KEYS[1], 'version', ARGV[2])
redis.call('HSET', KEYS[1], 'probed_at', plain(now))
return redis.call('HMGET', KEYS[1], 'secret', 'version', 'marked')
