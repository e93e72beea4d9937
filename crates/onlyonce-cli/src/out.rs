//! Standard output of commands, whose reader may close it, as in `onlyonce keys list | head -1`.
//!
//! `println!` panics in that case. Printing here ends the process silently instead.

use std::{
    fmt,
    io::{self, ErrorKind, Write as _},
    process,
};

/// The exit code of a process that could not print its output.
const UNHEARD: i32 = 1;

/// Prints to standard output.
macro_rules! out {
    ($($argument:tt)*) => { $crate::out::print(format_args!($($argument)*)) };
}

/// Prints a line to standard output.
macro_rules! outln {
    ($($argument:tt)*) => { $crate::out::print(format_args!("{}\n", format_args!($($argument)*))) };
}

/// Prints, or ends the process if that is no longer possible.
pub(crate) fn print(text: fmt::Arguments<'_>) {
    let mut out = io::stdout().lock();
    let Err(error) = out.write_fmt(text).and_then(|()| out.flush()) else {
        return;
    };
    if error.kind() != ErrorKind::BrokenPipe {
        eprintln!("error: standard output cannot be written: {error}");
    }
    process::exit(UNHEARD);
}
