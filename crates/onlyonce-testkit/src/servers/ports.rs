//! Ports for the servers of tests. A port belongs to the process that requested it until that process ends,
//! whether its server is running or not.
//!
//! Ports chosen by the kernel would not do: it gives the same ports to outgoing connections. While a server
//! is down, the local end of some connection could take its port. So could a client that tries to reach the
//! server: with nobody there, a connection whose local end gets that port connects to itself.

use std::{
    hash::{BuildHasher as _, RandomState},
    net::{Ipv4Addr, TcpListener},
    ops::Range,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener},
    },
    sync::{Mutex, PoisonError},
};

/// Below the ports that Linux gives to connections, and above those of services.
const PORTS: Range<u16> = 10_000..32_768;

/// Keeps other processes from the same ports: a name in the network's own list of sockets, which goes with
/// the process.
static OURS: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());

/// A free port of the loopback address that nobody else gets while this process lives.
pub fn free_port() -> u16 {
    let count = u64::from(PORTS.end - PORTS.start);
    let random = RandomState::new().hash_one(std::process::id());
    for step in 0..count {
        let offset = u16::try_from((random % count + step) % count).expect("within the range");
        let port = PORTS.start + offset;
        let name = SocketAddr::from_abstract_name(format!("onlyonce-test-port-{port}"));
        let Ok(ours) = UnixListener::bind_addr(&name.expect("a short name")) else {
            continue;
        };
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            OURS.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(ours);
            return port;
        }
    }
    panic!("no port of {PORTS:?} is free");
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    use super::{PORTS, free_port};

    /// Goal: no two servers get the same port, and no connection gets a server's port.
    #[test]
    fn each_port_is_given_once() {
        let ports: BTreeSet<u16> = (0..500).map(|_| free_port()).collect();
        assert_eq!(ports.len(), 500);
        let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
        let first: u16 = range.split_whitespace().next().unwrap().parse().unwrap();
        assert!(PORTS.end <= first, "connections are given ports of servers");
    }
}
