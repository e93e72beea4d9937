-- Version 10. The scopes that records are in, so that a key is found by one probe for each. `id` is the
-- keyed hash of the scope with an empty key, which no record has; `name` is the scope, encrypted where keys
-- are configured. A scope stands here before the first record in it; programs of version 9 do not see to
-- that, so that newer ones look at all rows until a day after the upgrade. The index is not unique, so that an
-- open transaction which is the first to use a scope keeps nobody else waiting; a scope may stand here twice.
CREATE TABLE onlyonce.scopes (
    id uuid NOT NULL,
    name text NOT NULL
);
CREATE INDEX scopes_by_id ON onlyonce.scopes (id);
