//! Reads single keys from a terminal, without waiting for a line; restores the terminal afterwards.

use std::{
    io::{self, Read as _},
    thread,
};

use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
};

pub(super) struct Keyboard {
    /// The terminal's original settings; `None` if standard input is not a terminal.
    before: Option<Termios>,
    keys: mpsc::Receiver<u8>,
    interrupt: Signal,
    terminate: Signal,
}

impl Keyboard {
    pub(super) fn open() -> io::Result<Self> {
        let before = tcgetattr(io::stdin()).ok();
        let (tell, keys) = mpsc::channel(8);
        if let Some(before) = &before {
            let mut single = before.clone();
            single
                .local_modes
                .remove(LocalModes::ICANON | LocalModes::ECHO);
            single.special_codes[SpecialCodeIndex::VMIN] = 1;
            single.special_codes[SpecialCodeIndex::VTIME] = 0;
            tcsetattr(io::stdin(), OptionalActions::Now, &single)?;
            // The thread ends with the process: nothing wakes a thread that reads from a terminal.
            thread::spawn(move || {
                let mut key = [0];
                while matches!(io::stdin().read(&mut key), Ok(1)) {
                    if tell.blocking_send(key[0]).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self {
            before,
            keys,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits until the user quits: by `q`, or by a signal, which would otherwise leave the terminal with the
    /// settings made here.
    pub(super) async fn leaves(&mut self) {
        loop {
            tokio::select! {
                Some(key) = self.keys.recv() => if matches!(key, b'q' | b'Q') {
                    return;
                },
                _ = self.interrupt.recv() => return,
                _ = self.terminate.recv() => return,
            }
        }
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // A terminal that cannot be reset is gone.
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}
