//! How long the random runs of this crate are.

use proptest::test_runner::{Config, RngSeed};

/// How many times as long with `ONLYONCE_SOAK=1`.
const SOAK_FACTOR: u32 = 100;

/// As many cases as `normal`, or the long run of it.
pub(crate) fn cases(normal: u32) -> Config {
    Config::with_cases(normal * if is_on() { SOAK_FACTOR } else { 1 })
}

/// The same, and always the same cases but for the long run.
pub(crate) fn same_cases(normal: u32) -> Config {
    Config {
        rng_seed: match is_on() {
            true => RngSeed::Random,
            false => RngSeed::Fixed(1),
        },
        ..cases(normal)
    }
}

fn is_on() -> bool {
    std::env::var_os("ONLYONCE_SOAK").is_some_and(|value| value == "1")
}
