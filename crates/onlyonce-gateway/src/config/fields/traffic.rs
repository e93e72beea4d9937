//! TLS, and what upstreams are told about the way of a request.

use super::{Item, Kind::*};
use crate::config::{network::Network, setting::Word, traffic::ForwardedHeaders};

schema! {
    TLS = "`tls`" {
        cert = File, required,
            "the certificate in PEM form, followed by those between it and its authority";
        key = File, required, "its private key in PEM form, without a password";
    }
}

section! {
    /// What upstreams are told about the way of a request.
    #[derive(Default)]
    pub(crate) struct Forwarded: FORWARDED = "`forwarded`" {
        pub headers: ForwardedHeaders = Words(ForwardedHeaders::NAMES), "x-forwarded",
            "what backends are told in: `X-Forwarded-For`, `-Proto` and `-Host`, or `Forwarded` \
             of RFC 7239; with `none` nothing is added and nothing is touched";
        pub trust: Vec<Network> = List(Item::Networks), ["none"],
            "proxies in front, such as `10.0.0.0/8`: what they say is kept and added to. From \
             anybody else these headers are replaced";
    }
}
