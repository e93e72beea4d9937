//! One process per file, whatever the file is called: the lock is on the file itself.
//!
//! A lock file is found by its path, so a hard link, a symbolic link or a removed lock file bypasses it. So
//! the lock is taken on the inode, and also on the lock file, which older programs know and which names the
//! session (`stopped.rs`). The holder also notices when the path leads to another file or the log is gone:
//! later writes would be lost with the process.

use std::{
    collections::HashSet,
    fs::{File, Metadata, Permissions},
    io,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::LazyLock,
};

use parking_lot::Mutex;

use super::{OpenError, stopped::log_of};
use crate::Unfit;

/// The mode of the files, which contain keys and answers.
const OWNER_ONLY: u32 = 0o600;

/// Device and inode number, which identify a file under any name.
type Inode = (u64, u64);

/// The files that this process has open as stores. Only SQLite may close one of them: closing it elsewhere
/// would release SQLite's own locks, which belong to the process and the file.
static OPEN: LazyLock<Mutex<HashSet<Inode>>> = LazyLock::new(Mutex::default);

/// The lock on one file. It is released when the process ends, for whatever reason.
pub(super) struct Lock {
    file: File,
    inode: Inode,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A child process shares the file between its start and its program, and would keep the lock so long.
        let _ = self.file.unlock();
        OPEN.lock().remove(&self.inode);
    }
}

impl Lock {
    /// Locks the file itself. A missing file is created, for its owner only.
    pub(super) fn take(path: &Path) -> Result<Self, OpenError> {
        let io = OpenError::io(path);
        let in_use = || OpenError::InUse(path.to_owned());
        let mut open = OPEN.lock();
        if std::fs::metadata(path).is_ok_and(|found| open.contains(&inode(&found))) {
            return Err(in_use());
        }
        let file = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(OWNER_ONLY)
            .open(path);
        let file = match file {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
                ) && path.exists() =>
            {
                return Err(OpenError::ReadOnly(path.to_owned()));
            }
            file => file.map_err(io)?,
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Err(in_use()),
            Err(std::fs::TryLockError::Error(source)) => return Err(io(source)),
        }
        let inode = inode(&file.metadata().map_err(io)?);
        open.insert(inode);
        Ok(Self { file, inode })
    }
}

/// Locks the lock file beside `path`, which keeps out programs that know only that lock.
pub(super) fn beside(path: &Path) -> Result<File, OpenError> {
    let io = OpenError::io(path);
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(OWNER_ONLY)
        .open(PathBuf::from(name))
        .map_err(io)?;
    // Older programs made it readable for everybody. If another user owns it, its mode stays.
    let _ = file.set_permissions(Permissions::from_mode(OWNER_ONLY));
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(OpenError::InUse(path.to_owned())),
        Err(std::fs::TryLockError::Error(source)) => Err(io(source)),
    }
}

/// The path without symbolic links: SQLite puts the log beside their target.
pub(super) fn resolved(path: &Path) -> PathBuf {
    if let Ok(found) = path.canonicalize() {
        return found;
    }
    // A file that does not exist yet, perhaps the target of a link.
    if let Ok(target) = path.read_link() {
        let folder = path.parent().unwrap_or(Path::new(""));
        return resolved(&folder.join(target));
    }
    match (path.parent(), path.file_name()) {
        (Some(folder), Some(name)) => {
            let folder = if folder.as_os_str().is_empty() {
                Path::new(".")
            } else {
                folder
            };
            match folder.canonicalize() {
                Ok(folder) => folder.join(name),
                Err(_) => path.to_owned(),
            }
        }
        _ => path.to_owned(),
    }
}

/// The file and its log, as they were when the store was opened.
pub(super) struct Places {
    file: (PathBuf, Inode),
    log: (PathBuf, Inode),
}

impl Places {
    /// Notes the inodes of the file and its log. The log exists once anything was written.
    pub(super) fn note(path: &Path) -> io::Result<Self> {
        let place = |path: PathBuf| {
            let found = inode(&std::fs::metadata(&path)?);
            Ok::<_, io::Error>((path, found))
        };
        Ok(Self {
            file: place(path.to_owned())?,
            log: place(log_of(path))?,
        })
    }

    /// Checks that the paths still lead to this process's open files; the error names the one that does not.
    pub(super) fn check(&self) -> Result<(), Unfit> {
        for (path, expected) in [&self.file, &self.log] {
            match std::fs::metadata(path) {
                Ok(found) if inode(&found) == *expected => {}
                Ok(_) => return Err(moved(path, "another file is in its place")),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(moved(path, "it was removed"));
                }
                // A folder that cannot be read at the moment proves nothing.
                Err(_) => {}
            }
        }
        Ok(())
    }
}

/// The error for a file of the store that is not where it was.
fn moved(path: &Path, how: &str) -> Unfit {
    Unfit::new(format!(
        "{} is not the file that this process has open: {how}; nothing more is written, since it would be \
         lost. Stop this gateway in good order (SIGTERM), which makes its own file whole, and look at what \
         is there before it is started again",
        path.display()
    ))
}

fn inode(metadata: &Metadata) -> Inode {
    (metadata.dev(), metadata.ino())
}
