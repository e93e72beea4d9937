//! Who is asking.

use super::{Item, Kind::*, Schema, field};

pub(in crate::config) const AUTH: Schema = Schema {
    name: "`auth`",
    fields: &[
        field(
            "api_keys",
            Sections(&API_KEY),
            "",
            "[keys](#an-api-key) that clients send in `Authorization: Bearer` or `X-Api-Key`",
        ),
        field(
            "jwt",
            Section(&JWT),
            "",
            "[signed tokens](#jwt) in `Authorization: Bearer`",
        ),
        field(
            "trusted_header",
            Section(&TRUSTED_HEADER),
            "",
            "[a header](#trusted_header) that a proxy in front sets",
        ),
        field(
            "external",
            Section(&EXTERNAL),
            "",
            "[a service](#external) that is asked about each request",
        ),
        field(
            "shared_client_ids",
            Boolean,
            "`false`",
            "whether the same id from two of these ways is the same client; two ways without it are refused",
        ),
    ],
};

pub(in crate::config) const API_KEY: Schema = Schema {
    name: "an API key",
    fields: &[
        field(
            "client_id",
            Text,
            "required",
            "whose key it is, 1 to 256 bytes; several keys may name one client",
        ),
        field(
            "sha256",
            Hex,
            "required",
            "the SHA-256 of the key: `printf %s \"$KEY\" \\| sha256sum`",
        ),
    ],
};

pub(in crate::config) const JWT: Schema = Schema {
    name: "`jwt`",
    fields: &[
        field("jwks_file", File, "", "a JSON Web Key Set"),
        field(
            "jwks_url",
            Url,
            "",
            "the address of one, `http://` or `https://`",
        ),
        field(
            "ca_file",
            File,
            "the public authorities",
            "with `https://`: the authorities that the certificate of `jwks_url` may come from",
        ),
        field(
            "secret_env",
            Name,
            "",
            "the environment variable that holds a shared secret (HS256, HS384, HS512)",
        ),
        field(
            "public_key_file",
            File,
            "",
            "an RSA, EC or Ed25519 public key in PEM form",
        ),
        field("issuer", TextOrList, "any", "what the claim `iss` must be"),
        field(
            "audience",
            TextOrList,
            "any",
            "what the claim `aud` must hold one of; without it `check` warns",
        ),
        field(
            "client_id_claim",
            Text,
            "`sub`",
            "the claim that names the client: a text or a whole number",
        ),
        field(
            "leeway",
            Duration,
            "`5s`",
            "how far clocks may differ when `exp` and `nbf` are checked; at most `1h`",
        ),
        field(
            "refresh",
            Duration,
            "`5m`",
            "how old a key set may become before it is read again",
        ),
    ],
};

pub(in crate::config) const TRUSTED_HEADER: Schema = Schema {
    name: "`trusted_header`",
    fields: &[
        field(
            "name",
            Header,
            "required",
            "the header that holds the client's id",
        ),
        field(
            "from",
            List(Item::Networks),
            "required",
            "whose word it is, such as `10.0.0.0/8`; from anybody else the header is removed",
        ),
    ],
};

pub(in crate::config) const EXTERNAL: Schema = Schema {
    name: "`external`",
    fields: &[
        field(
            "url",
            Url,
            "required",
            "what is asked, `http://` or `https://`",
        ),
        field(
            "ca_file",
            File,
            "the public authorities",
            "with `https://`: the authorities that its certificate may come from",
        ),
        field(
            "client_id_header",
            Header,
            "required",
            "the header of its answer that holds the client's id",
        ),
        field("timeout", Duration, "`2s`", "how long it may take"),
    ],
};
