//! Database servers of tests that can be stopped, frozen, killed and started again.

use onlyonce_testkit::servers::{MariaDb, Postgres, Redis, RedisCluster};

/// Redis settings with which acknowledged writes survive the server's death.
const DURABLE: [&str; 2] = ["appendonly yes", "appendfsync always"];

/// A store of one server or several, whose acknowledged writes survive its death.
pub(crate) trait Mortal: Send + Sync + 'static {
    fn start() -> Self;
    fn url(&self) -> String;
    /// Further options of `store`, each behind a comma.
    fn options(&self) -> String {
        String::new()
    }
    fn boot(&mut self);
    fn stop(&mut self);
    fn kill(&mut self);
    fn freeze(&self);
    fn thaw(&self);
}

/// What the tests of bad lines need of a server.
pub(crate) trait Server: Mortal {
    fn port(&self) -> u16;
    /// The same database through another port.
    fn url_at(&self, port: u16) -> String;
    /// How a short text travels to it in a statement.
    fn on_the_wire(text: &str) -> Vec<u8>;
}

macro_rules! mortal {
    ($($server:ty, $start:expr;)*) => {$(
        impl Mortal for $server {
            fn start() -> Self {
                $start()
            }

            fn url(&self) -> String {
                self.url()
            }

            fn boot(&mut self) {
                self.boot();
            }

            fn stop(&mut self) {
                self.stop();
            }

            fn kill(&mut self) {
                self.kill();
            }

            fn freeze(&self) {
                self.freeze();
            }

            fn thaw(&self) {
                self.thaw();
            }
        }
    )*};
}

mortal! {
    Postgres, Self::start;
    MariaDb, Self::start;
    Redis, || Self::start_with(&DURABLE);
    RedisCluster, || Self::start_with(&DURABLE);
}

macro_rules! servers {
    ($($server:ty, $on_the_wire:expr;)*) => {$(
        impl Server for $server {
            fn port(&self) -> u16 {
                self.port()
            }

            fn url_at(&self, port: u16) -> String {
                self.url_at(port)
            }

            fn on_the_wire(text: &str) -> Vec<u8> {
                $on_the_wire(text)
            }
        }
    )*};
}

servers! {
    Postgres, |text: &str| text.as_bytes().to_vec();
    // In hexadecimal.
    MariaDb, |text: &str| {
        let digits: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
        digits.into_bytes()
    };
    Redis, |text: &str| text.as_bytes().to_vec();
}
