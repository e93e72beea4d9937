-- KEYS journal, own journal, kept journal
-- ARGV journal rows of one record
journal(1, KEYS[1], KEYS[2], KEYS[3])
return { now, 'done' }
