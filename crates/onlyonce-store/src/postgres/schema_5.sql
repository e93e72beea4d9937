-- Version 9. Whoever empties the tables of the keys sets the store back to its beginning, and gateways that
-- have seen its epoch higher refuse it until an operator accepts what is missing.
CREATE OR REPLACE FUNCTION onlyonce.keys_were_emptied() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE onlyonce.meta SET value = '0 0' WHERE name = 'epoch';
    RETURN NULL;
END
$$;
DROP TRIGGER IF EXISTS keys_were_emptied ON onlyonce.keys;
CREATE TRIGGER keys_were_emptied AFTER TRUNCATE ON onlyonce.keys
    EXECUTE FUNCTION onlyonce.keys_were_emptied();
DROP TRIGGER IF EXISTS live_keys_were_emptied ON onlyonce.live;
CREATE TRIGGER live_keys_were_emptied AFTER TRUNCATE ON onlyonce.live
    EXECUTE FUNCTION onlyonce.keys_were_emptied();
