//! `onlyonce check FILE`: everything that is wrong with a configuration, at once.

use std::{
    io::{self, Write},
    path::Path,
};

use super::{Overrides, load};
use crate::telemetry;

/// Checks the file at `path`; findings go to `findings`, one line about a good file to `verdict`.
/// Answers whether the file can be used, by whom `overrides` say.
///
/// # Errors
/// When the findings cannot be written.
pub fn check(
    path: &Path,
    overrides: &Overrides,
    verdict: &mut dyn Write,
    findings: &mut dyn Write,
) -> io::Result<bool> {
    match load(path, overrides) {
        Ok(config) => {
            for warning in &config.warnings {
                writeln!(findings, "{warning}")?;
            }
            if let Some(warning) = telemetry::unheard().filter(|_| !overrides.no_env) {
                writeln!(findings, "{warning}")?;
            }
            let (routes, protected) = (config.routes.len(), config.protected().count());
            writeln!(
                verdict,
                "{}: good; {protected} of {routes} routes protected",
                path.display()
            )?;
            Ok(true)
        }
        Err(diagnostics) => {
            writeln!(findings, "{diagnostics}")?;
            Ok(false)
        }
    }
}
