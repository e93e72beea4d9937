//! Who is asking.

use std::{ops::RangeInclusive, time::Duration};

use http::HeaderName;

use super::{Item, Kind::*, SOME};
use crate::config::{
    auth::{ApiKey, Endpoint, JwtConfig, client_id},
    network::Network,
    setting::variable,
};

/// Clocks that differ by more than this are wrong.
const LEEWAY: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(3_600);

section! {
    /// How callers are authenticated; at least one way.
    #[derive(Default, Eq)]
    pub(crate) struct AuthConfig: AUTH = "`auth`" {
        pub api_keys: Vec<ApiKey> = Sections(&API_KEY), [""],
            "[keys](#an-api-key) that clients send in `Authorization: Bearer` or `X-Api-Key`";
        pub jwt: Option<JwtConfig> = Section(&JWT), (""),
            "[signed tokens](#jwt) in `Authorization: Bearer`";
        pub trusted_header: Option<TrustedHeader> = Section(&TRUSTED_HEADER), (""),
            "[a header](#trusted_header) that a proxy in front sets";
        pub external: Option<ExternalConfig> = Section(&EXTERNAL), (""),
            "[a service](#external) that is asked about each request";
        pub shared_client_ids: bool = Boolean, "false",
            "whether the same id from two of these ways is the same client; two ways without it \
             are refused";
    }
}

schema! {
    API_KEY = "an API key" {
        client_id = CheckedText(client_id), required,
            "whose key it is, 1 to 256 bytes; several keys may name one client";
        sha256 = Hex, required, "the SHA-256 of the key: `printf %s \"$KEY\" \\| sha256sum`";
    }
}

schema! {
    JWT = "`jwt`" {
        jwks_file = File, (""), "a JSON Web Key Set";
        jwks_url = Url, (""), "the address of one, `http://` or `https://`";
        ca_file = File, ("the public authorities"),
            "with `https://`: the authorities that the certificate of `jwks_url` may come from";
        secret_env = Name(variable), (""),
            "the environment variable that holds a shared secret (HS256, HS384, HS512)";
        public_key_file = File, (""), "an RSA, EC or Ed25519 public key in PEM form";
        issuer = TextOrList, ("any"), "what the claim `iss` must be";
        audience = TextOrList, ("any"),
            "what the claim `aud` must hold one of; without it `check` warns";
        client_id_claim = Text, "sub", "the claim that names the client: a text or a whole number";
        leeway = Duration(LEEWAY), "5s",
            "how far clocks may differ when `exp` and `nbf` are checked; at most `1h`";
        refresh = Duration(SOME), "5m", "how old a key set may become before it is read again";
    }
}

section! {
    /// A header that names the client, believed from some addresses only.
    #[derive(Eq)]
    pub(crate) struct TrustedHeader: TRUSTED_HEADER = "`trusted_header`" {
        pub name: HeaderName = Header, required, "the header that holds the client's id";
        pub from: Vec<Network> = List(Item::Networks), required,
            "whose word it is, such as `10.0.0.0/8`; from anybody else the header is removed";
    }
}

section! {
    /// A service that is asked about every request.
    #[derive(Eq)]
    pub(crate) struct ExternalConfig: EXTERNAL = "`external`" {
        pub url: Endpoint = Url, required, "what is asked, `http://` or `https://`";
        ca_file = File, ("the public authorities"),
            "with `https://`: the authorities that its certificate may come from";
        pub client_id_header: HeaderName = Header, required,
            "the header of its answer that holds the client's id";
        pub timeout: Duration = Duration(SOME), "2s", "how long it may take";
    }
}
