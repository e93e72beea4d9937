//! A connection that can be closed while others hold a reference to it.

use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use rusqlite::{Connection, InterruptHandle};

use super::ReadError;

pub(super) struct Slot {
    connection: Mutex<Option<Connection>>,
    interrupt: InterruptHandle,
}

impl Slot {
    pub(super) fn new(connection: Connection) -> Self {
        Self {
            interrupt: connection.get_interrupt_handle(),
            connection: Mutex::new(Some(connection)),
        }
    }

    /// The connection, once it is free.
    pub(super) fn lock(&self) -> Result<MappedMutexGuard<'_, Connection>, ReadError> {
        open(self.connection.lock())
    }

    /// The connection, if it is free.
    pub(super) fn try_lock(&self) -> Option<Result<MappedMutexGuard<'_, Connection>, ReadError>> {
        self.connection.try_lock().map(open)
    }

    /// Closes the connection once it is free.
    pub(super) fn close(&self) {
        *self.connection.lock() = None;
    }

    /// Closes the connection, and interrupts the read in progress.
    pub(super) fn interrupt(&self) {
        self.interrupt.interrupt();
        self.close();
    }
}

fn open(
    guard: MutexGuard<'_, Option<Connection>>,
) -> Result<MappedMutexGuard<'_, Connection>, ReadError> {
    MutexGuard::try_map(guard, Option::as_mut).map_err(|_| ReadError::Closed)
}
