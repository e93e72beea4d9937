//! Database servers of tests that can be stopped, frozen, killed and started again.

use onlyonce_store::private::{MariaDb, Postgres};

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
    ($($server:ty, $on_the_wire:expr;)*) => {$(
        impl Server for $server {
            fn start() -> Self {
                Self::start()
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
    Postgres, |text: &str| text.as_bytes().to_vec();
    // In hexadecimal.
    MariaDb, |text: &str| {
        let digits: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
        digits.into_bytes()
    };
}
