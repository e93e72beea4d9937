//! Small and read-only file systems, where the machine lets a test mount them.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

/// A file system that is unmounted when dropped.
pub(crate) struct Mount {
    at: PathBuf,
    /// The folder below it, if it is ours; removed after the file system.
    _folder: Option<TempDir>,
}

impl Mount {
    /// An empty file system in memory that holds `bytes`; or why there is none.
    pub(crate) fn tmpfs(bytes: u64) -> Result<Self, String> {
        let folder = TempDir::new().expect("a folder to mount on");
        let at = folder.path().to_owned();
        let options = format!("size={bytes}");
        mount(&["-t", "tmpfs", "-o", &options, "tmpfs"], &at)?;
        Ok(Self {
            at,
            _folder: Some(folder),
        })
    }

    /// A file that can only be read, even by those whom permissions do not bind.
    pub(crate) fn read_only_file(file: &Path) -> Result<Self, String> {
        let name = file.to_str().expect("a plain name");
        mount(&["--bind", name], file)?;
        let mounted = Self {
            at: file.to_owned(),
            _folder: None,
        };
        mount(&["-o", "remount,ro,bind"], file)?;
        Ok(mounted)
    }

    /// From now on nothing can be written on it; nothing may be open for writing.
    pub(crate) fn read_only(&self) -> Result<(), String> {
        mount(&["-o", "remount,ro"], &self.at)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.at
    }

    /// Writes a file of `bytes` zeros, or of as many as there is room for.
    pub(crate) fn fill(&self, name: &str, bytes: usize) {
        use std::io::Write as _;
        let mut file = std::fs::File::create(self.at.join(name)).expect("a file");
        // What did not fit is what was wanted.
        let _ = file.write_all(&vec![0; bytes]);
    }

    pub(crate) fn remove(&self, name: &str) {
        std::fs::remove_file(self.at.join(name)).expect("the file is there");
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazily: a gateway that is still ending may hold files on it.
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

fn mount(arguments: &[&str], at: &Path) -> Result<(), String> {
    let mounted = Command::new("mount").args(arguments).arg(at).output();
    match mounted {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
