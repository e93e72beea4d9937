-- Version 5. The keys of a scope in their order: an index of the scopes' hashes, and with them the numbers,
-- which every index ends with. The hash is computed and not kept in the rows, so that no row is rewritten,
-- and programs of version 4 need not know of it. Two scopes may share one. Both steps can be run again.
SET @onlyonce_step = IF(
    EXISTS (SELECT 1 FROM information_schema.columns WHERE table_schema = DATABASE()
        AND table_name = 'onlyonce_keys' AND column_name = 'scope_hash'),
    'DO 0',
    'ALTER TABLE onlyonce_keys ADD COLUMN scope_hash INT UNSIGNED GENERATED ALWAYS AS (CRC32(scope)) VIRTUAL');
PREPARE onlyonce_step FROM @onlyonce_step;
EXECUTE onlyonce_step;
DEALLOCATE PREPARE onlyonce_step;
SET @onlyonce_step = IF(
    EXISTS (SELECT 1 FROM information_schema.statistics WHERE table_schema = DATABASE()
        AND table_name = 'onlyonce_keys' AND index_name = 'keys_by_scope'),
    'DO 0', 'ALTER TABLE onlyonce_keys ADD KEY keys_by_scope (scope_hash)');
PREPARE onlyonce_step FROM @onlyonce_step;
EXECUTE onlyonce_step;
DEALLOCATE PREPARE onlyonce_step;
