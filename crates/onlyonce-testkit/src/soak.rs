//! How long random and repeated tests run.

use proptest::test_runner::{Config, RngSeed};

/// The factor by which a long run has more cases.
const FACTOR: u32 = 100;

/// Whether a long run was requested, with `ONLYONCE_SOAK=1`.
pub fn is_on() -> bool {
    std::env::var_os("ONLYONCE_SOAK").is_some_and(|value| value == "1")
}

/// `normal` cases, or the long run's number.
pub fn cases(normal: u32) -> Config {
    Config::with_cases(normal * if is_on() { FACTOR } else { 1 })
}

/// Like `cases`, but always the same cases except in the long run.
pub fn same_cases(normal: u32) -> Config {
    Config {
        rng_seed: match is_on() {
            true => RngSeed::Random,
            false => RngSeed::Fixed(1),
        },
        ..cases(normal)
    }
}
