//! How long random and repeated tests run.

use proptest::test_runner::{Config, RngSeed};

/// How many times as many cases a long run has.
const FACTOR: u32 = 100;

/// Whether the full counts were asked for, with `ONLYONCE_SOAK=1`.
pub fn is_on() -> bool {
    std::env::var_os("ONLYONCE_SOAK").is_some_and(|value| value == "1")
}

/// As many cases as `normal`, or the long run of it.
pub fn cases(normal: u32) -> Config {
    Config::with_cases(normal * if is_on() { FACTOR } else { 1 })
}

/// The same, and always the same cases but for the long run.
pub fn same_cases(normal: u32) -> Config {
    Config {
        rng_seed: match is_on() {
            true => RngSeed::Random,
            false => RngSeed::Fixed(1),
        },
        ..cases(normal)
    }
}
