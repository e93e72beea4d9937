-- Version 3. What a record notes beside its columns: how the key was spelled, how its caller was marked,
-- and what only some records need. Programs of version 2 leave it empty, which reads as the careful default.
-- Only MariaDB can be told to add a column unless it is there.
SET @onlyonce_step = IF(
    EXISTS (SELECT 1 FROM information_schema.columns WHERE table_schema = DATABASE()
        AND table_name = 'onlyonce_keys' AND column_name = 'notes'),
    'DO 0', 'ALTER TABLE onlyonce_keys ADD COLUMN notes BLOB');
PREPARE onlyonce_step FROM @onlyonce_step;
EXECUTE onlyonce_step;
DEALLOCATE PREPARE onlyonce_step;
