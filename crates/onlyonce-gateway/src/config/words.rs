//! The words that fields accept, and their meanings.

use onlyonce_core::{
    fingerprint::BodyMode,
    policy::{
        AfterExpiry, Dialect, Enforce, ErrorFormat, KeyScope, On5xx, OnInFlight, OnStoreError,
        PathReadings, Profile, Remember,
    },
};
use onlyonce_store::{at_rest::Compression, postgres::Pooler};

use super::{
    outbox::{Broker, Carrier},
    reconcile::Scheme,
    routes::RouteAuth,
    setting::Word,
    traffic::ForwardedHeaders,
};

macro_rules! words {
    ($($type:ident { $($name:literal = $value:expr),* $(,)? })*) => {$(
        impl Word for $type {
            const NAMES: &'static [&'static str] = &[$($name),*];
            const VALUES: &'static [Self] = &[$($value),*];
        }
    )*};
}

words! {
    bool { "true" = true, "false" = false }
    AfterExpiry { "new" = Self::New, "reject" = Self::Reject }
    BodyMode { "json" = Self::Json, "raw" = Self::Raw }
    Carrier {
        "http" = Self::Http,
        "nats" = Self::Broker(Broker::Nats),
        "rabbitmq" = Self::Broker(Broker::RabbitMq),
        "kafka" = Self::Broker(Broker::Kafka),
    }
    Compression { "none" = Self::None, "zstd" = Self::Zstd, "dictionary" = Self::Dictionary }
    Dialect { "ietf" = Self::Ietf, "stripe" = Self::Stripe, "runway" = Self::Runway }
    Enforce { "true" = Self::On, "false" = Self::Off, "all" = Self::All }
    ErrorFormat { "hybrid" = Self::Hybrid, "problem" = Self::Problem, "stripe" = Self::Stripe }
    ForwardedHeaders {
        "x-forwarded" = Self::XForwarded,
        "forwarded" = Self::Forwarded,
        "both" = Self::Both,
        "none" = Self::None,
    }
    KeyScope { "per_client" = Self::PerClient, "global" = Self::Global }
    On5xx { "retry" = Self::Retry, "store" = Self::Store, "unknown" = Self::Unknown }
    OnInFlight { "wait" = Self::Wait, "reject" = Self::Reject, "accept" = Self::Accept }
    OnStoreError { "refuse" = Self::Refuse, "bypass" = Self::Bypass }
    PathReadings { "common" = Self::Common, "exact" = Self::Exact }
    Pooler { "none" = Self::None, "transaction" = Self::Transaction }
    Profile { "safe" = Self::Safe, "payments" = Self::Payments, "cache" = Self::Cache }
    Remember { "full" = Self::Full, "head" = Self::Head }
    RouteAuth { "required" = Self::Required, "optional" = Self::Optional }
    Scheme { "standard" = Self::Standard, "stripe" = Self::Stripe }
}
