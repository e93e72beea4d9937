-- KEYS a set of ids by time
-- ARGV the earliest time, how many
return { now, redis.call('ZRANGEBYSCORE', KEYS[1], ARGV[1], plain(now), 'WITHSCORES', 'LIMIT', 0, ARGV[2]) }
