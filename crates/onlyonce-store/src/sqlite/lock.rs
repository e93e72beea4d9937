//! One process for a file, whatever the file is called: the lock is on the file itself.
//!
//! A lock beside the file is found by its path, and a hard link, a symbolic link or a removed lock file
//! leads around it. So the lock is taken on the inode, as well as on the lock file that older programs know
//! and that names the session (`stopped.rs`). Who holds it also notices when the path leads to another
//! file, or the log is gone: what is written then would be lost with the process.

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

/// The mode of the files: they hold keys and answers.
const OWNER_ONLY: u32 = 0o600;

/// Device and number of a file: what it is, whatever it is called.
type Inode = (u64, u64);

/// The files that this process has open as stores. Nobody but SQLite may close one of them: that would
/// let go of SQLite's own locks, since those belong to the process and the file.
static OPEN: LazyLock<Mutex<HashSet<Inode>>> = LazyLock::new(Mutex::default);

/// The lock on one file. It ends with the process, however that ends.
pub(super) struct Lock {
    _file: File,
    inode: Inode,
}

impl Drop for Lock {
    fn drop(&mut self) {
        OPEN.lock().remove(&self.inode);
    }
}

impl Lock {
    /// Takes the lock on the file itself, which is made if it is not there, for its owner alone.
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
        Ok(Self { _file: file, inode })
    }
}

/// Takes the lock file beside `path`, which keeps out programs that know of nothing else.
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
    // Older programs made it for everybody to read. If it is somebody else's, that is theirs to say.
    let _ = file.set_permissions(Permissions::from_mode(OWNER_ONLY));
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(OpenError::InUse(path.to_owned())),
        Err(std::fs::TryLockError::Error(source)) => Err(io(source)),
    }
}

/// The path without symbolic links: SQLite puts the log beside the file that they lead to.
pub(super) fn resolved(path: &Path) -> PathBuf {
    if let Ok(found) = path.canonicalize() {
        return found;
    }
    // A file that is not there yet, perhaps at the end of a link.
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

/// The file and its log as they were when the store was opened.
pub(super) struct Places {
    file: (PathBuf, Inode),
    log: (PathBuf, Inode),
}

impl Places {
    /// Notes where the file and its log are. The log is there once anything was written.
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

    /// Whether the paths still lead to what this process has open; says which does not.
    pub(super) fn check(&self) -> Result<(), Unfit> {
        for (path, expected) in [&self.file, &self.log] {
            match std::fs::metadata(path) {
                Ok(found) if inode(&found) == *expected => {}
                Ok(_) => return Err(moved(path, "another file is in its place")),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(moved(path, "it was removed"));
                }
                // A folder that cannot be looked into for the moment proves nothing.
                Err(_) => {}
            }
        }
        Ok(())
    }
}

/// A file of the store is not where it was.
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
