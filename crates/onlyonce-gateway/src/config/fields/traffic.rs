//! TLS, and what upstreams are told about the way of a request.

use super::{Item, Kind::*, Schema, field};

pub(in crate::config) const TLS: Schema = Schema {
    name: "`tls`",
    fields: &[
        field(
            "cert",
            File,
            "required",
            "the certificate in PEM form, followed by those between it and its authority",
        ),
        field(
            "key",
            File,
            "required",
            "its private key in PEM form, without a password",
        ),
    ],
};

pub(in crate::config) const FORWARDED: Schema = Schema {
    name: "`forwarded`",
    fields: &[
        field(
            "headers",
            Words(&["x-forwarded", "forwarded", "both", "none"]),
            "`x-forwarded`",
            "what backends are told in: `X-Forwarded-For`, `-Proto` and `-Host`, or `Forwarded` \
             of RFC 7239; with `none` nothing is added and nothing is touched",
        ),
        field(
            "trust",
            List(Item::Networks),
            "none",
            "proxies in front, such as `10.0.0.0/8`: what they say is kept and added to. From \
             anybody else these headers are replaced",
        ),
    ],
};
