//! Address blocks, for the lists of trusted proxies.

use std::{fmt, net::IpAddr, str::FromStr};

use ipnet::IpNet;
use serde_json::Value;

use super::{
    diagnostics::{Report, quoted},
    fields::Field,
    scalar::Found,
    setting::{Scalar, View},
};

/// An address block such as `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network(IpNet);

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Network {
    /// Whether the block contains `address`. An IPv4 address in IPv6 form counts as IPv4.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }

    /// Whether the block contains every address of its family.
    pub(super) fn is_everybody(&self) -> bool {
        self.0.prefix_len() == 0
    }
}

impl FromStr for Network {
    type Err = ();

    /// Parses `ADDRESS` or `ADDRESS/BITS`.
    fn from_str(text: &str) -> Result<Self, ()> {
        let one = || text.parse::<IpAddr>().map(IpNet::from).map_err(|_| ());
        text.parse().or_else(|_| one()).map(Self)
    }
}

impl Scalar for Network {
    fn of(found: Found<'_>, _: &Field, report: &mut Report<'_>) -> Option<Self> {
        let network = found.text.parse().ok();
        if network.is_none() {
            report
                .error(
                    found.at,
                    format!("{} is not a block of addresses", quoted(found.written)),
                )
                .hint("for example `10.0.0.0/8`, `192.0.2.7` or `fd00::/8`");
        }
        network
    }
}

impl View for Network {
    fn view(&self) -> Value {
        self.to_string().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_addresses() {
        for (block, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
            ("192.0.2.7", "192.0.2.7", "192.0.2.8"),
            ("0.0.0.0/0", "203.0.113.9", "::1"),
            ("fd00::/8", "fdff::1", "fe80::1"),
            ("::1", "::1", "127.0.0.1"),
            ("127.0.0.0/8", "::ffff:127.0.0.1", "::ffff:128.0.0.1"),
        ] {
            let network: Network = block.parse().unwrap();
            assert!(
                network.contains(inside.parse().unwrap()),
                "{block} {inside}"
            );
            assert!(
                !network.contains(outside.parse().unwrap()),
                "{block} {outside}"
            );
        }
        for text in [
            "",
            "10.0.0.0/33",
            "10.0.0/8",
            "::/129",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "a",
        ] {
            assert_eq!(text.parse::<Network>(), Err(()), "{text}");
        }
    }
}
