//! Standard output of commands, whose reader may go away, as in `onlyonce keys list | head -1`.
//!
//! `println!` panics then. What is printed here ends the process instead, without a word.

use std::{
    fmt,
    io::{self, ErrorKind, Write as _},
    process,
};

/// How a process ends that could not say what it had to.
const UNHEARD: i32 = 1;

/// Prints to standard output.
macro_rules! out {
    ($($argument:tt)*) => { $crate::out::print(format_args!($($argument)*)) };
}

/// Prints a line to standard output.
macro_rules! outln {
    ($($argument:tt)*) => { $crate::out::print(format_args!("{}\n", format_args!($($argument)*))) };
}

/// Prints, or ends the process where that is not possible any more.
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
