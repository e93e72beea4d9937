//! Database servers of tests that can be stopped, frozen, killed and started again.

use onlyonce_store::private::{MariaDb, Postgres, Redis};

/// What the tests of faults need of a server.
pub(crate) trait Server: Send + Sync + 'static {
    fn start() -> Self;
    fn port(&self) -> u16;
    fn url(&self) -> String;
    /// The same database through another port.
    fn url_at(&self, port: u16) -> String;
    fn boot(&mut self);
    fn stop(&mut self);
    fn kill(&mut self);
    fn freeze(&self);
    fn thaw(&self);
    /// How a short text travels to it in a statement.
    fn on_the_wire(text: &str) -> Vec<u8>;
}

macro_rules! servers {
    ($($server:ty, $start:expr, $on_the_wire:expr;)*) => {$(
        impl Server for $server {
            fn start() -> Self {
                $start()
            }

            fn port(&self) -> u16 {
                self.port()
            }

            fn url(&self) -> String {
                self.url()
            }

            fn url_at(&self, port: u16) -> String {
                self.url_at(port)
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

            fn on_the_wire(text: &str) -> Vec<u8> {
                $on_the_wire(text)
            }
        }
    )*};
}

servers! {
    Postgres, Self::start, |text: &str| text.as_bytes().to_vec();
    // In hexadecimal.
    MariaDb, Self::start, |text: &str| {
        let digits: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
        digits.into_bytes()
    };
    // One whose acknowledged writes survive its death.
    Redis, || Self::start_with(&["appendonly yes", "appendfsync always"]),
        |text: &str| text.as_bytes().to_vec();
}
