//! Routes, and where their requests go.

use std::time::Duration;

use http::{HeaderName, Method};
use onlyonce_core::policy::PathReadings;

use super::{ANY, IDEMPOTENCY, LIMITS, SOME};
use super::{Item, Kind::*};
use crate::config::{
    cors::Origins,
    routes::{RouteAuth, id, path},
    setting::Word,
};

section! {
    /// What a route says beside its options for keys.
    pub(in crate::config) struct RouteFields: ROUTE = "a route" {
        pub id: Option<String> = Name(id), ("required"),
            "1 to 64 letters, digits, `_` and `-`; unique";
        pub path: Option<String> = Path(path), ("required"), "a prefix, without patterns";
        pub methods: Option<Vec<Method>> = List(Item::Methods), ("all"),
            "the methods that the route takes";
        backends = Sections(&BACKEND), required,
            "[where its requests go](#a-backend); at least one";
        timeout = Duration(SOME), "30s", "the same as `idempotency.timeout`; say it in one place";
        max_execution = Duration(SOME), "15m",
            "the same as `idempotency.max_execution`; say it in one place";
        pub upstream_idle: Option<Duration> = Duration(ANY), ("as the top level"), "";
        pub upstream_reuse: Option<bool> = Boolean,
            ("as the top level; profile `payments`: `false`"), "";
        pub connect_timeout: Option<Duration> = Duration(SOME), ("as the top level"), "";
        pub first_byte_timeout: Option<Duration> = Duration(SOME), ("as the top level"), "";
        limits = Section(&LIMITS), ("as the top level"), "[limits](#limits)";
        pub auth: RouteAuth = Words(RouteAuth::NAMES), "required",
            "where `auth` is configured: with `optional`, requests without a key need no \
             credential";
        pub cors: Option<CorsConfig> = Section(&CORS), ("none"),
            "[which pages](#cors) may read the gateway's own answers";
        shadow = Boolean, ("as the top level"),
            "the same as `idempotency.shadow`; say it in one place";
        path_readings = Words(PathReadings::NAMES), ("as the top level"),
            "the same as `idempotency.path_readings`; say it in one place";
        idempotency = Section(&IDEMPOTENCY), ("as the top level"),
            "[options](#idempotency) of this route";
    }
}

schema! {
    BACKEND = "a backend" {
        url = Url, required,
            "`http://` or `https://`, `HOST[:PORT][/PREFIX]`; the prefix is put before every \
             path";
        ca_file = File, ("the public authorities"),
            "with `https://`: the authorities in PEM form that its certificate may come from, \
             instead of the public ones. Certificates are always checked";
        http2 = Boolean, ("by ALPN with `https://`, else `false`"),
            "`true`: HTTP/2 only, in plain text with prior knowledge. `false`: HTTP/1.1 only";
        weight = Number(1..=1_000), "1",
            "its share of the requests, 1 to 1000; backends take turns";
    }
}

section! {
    /// Which pages may read the gateway's own answers, and what of them.
    #[derive(Eq)]
    pub(crate) struct CorsConfig: CORS = "`cors`" {
        pub origins: Origins = List(Item::Origins), required,
            "such as `https://shop.example.com`; `[\"*\"]` is every one";
        pub expose_headers: Option<Vec<HeaderName>> = List(Item::Headers), ("see below"),
            "the headers of these answers that a page may read";
        pub credentials: bool = Boolean, "false",
            "whether requests with cookies may read them; not with every origin";
    }
}
