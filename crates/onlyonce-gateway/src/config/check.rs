//! `onlyonce check FILE`: reports everything that is wrong with a configuration.

use std::{
    io::{self, Write},
    path::Path,
};

use super::{Overrides, load};
use crate::telemetry;

/// Checks the file at `path`. Findings go to `findings`, one line about a valid file to `verdict`. Returns
/// whether the process that `overrides` describe can use the file.
///
/// # Errors
/// If the output cannot be written.
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
