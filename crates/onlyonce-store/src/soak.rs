//! How long the random runs of this crate are.

use proptest::test_runner::Config;

/// How many times as long with `ONLYONCE_SOAK=1`.
const SOAK_FACTOR: u32 = 100;

/// As many cases as `normal`, or the long run of it.
pub(crate) fn cases(normal: u32) -> Config {
    let soak = std::env::var_os("ONLYONCE_SOAK").is_some_and(|value| value == "1");
    Config::with_cases(normal * if soak { SOAK_FACTOR } else { 1 })
}
