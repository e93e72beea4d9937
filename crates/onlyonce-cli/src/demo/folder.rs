//! The demo's folder on disk: its lock, the admin token and the gateway's configuration.
//!
//! A reused folder keeps its ledger, its keys and its token; the configuration is rewritten at every start,
//! because the ports may have changed.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// The three addresses of a demo.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    pub(super) listen: SocketAddr,
    pub(super) admin: SocketAddr,
    pub(super) api: SocketAddr,
}

/// A demo's folder, locked while this value lives.
pub(super) struct Folder {
    path: PathBuf,
    /// The kernel releases the lock when this process ends, however it ends.
    _lock: File,
}

impl Folder {
    /// Locks `wanted`, created if necessary, or a new temporary folder.
    pub(super) fn take(wanted: Option<PathBuf>) -> anyhow::Result<Self> {
        let path = match wanted {
            Some(path) => {
                let made = fs::create_dir_all(&path);
                made.with_context(|| format!("cannot make the folder {}", path.display()))?;
                path
            }
            None => fresh_folder().context("cannot make a temporary folder")?,
        };
        let path = path
            .canonicalize()
            .context("cannot resolve the folder's path")?;
        if path.to_str().is_none() {
            bail!("the folder's path {} is not UTF-8", path.display());
        }
        let lock = File::create(path.join("demo.lock")).context("cannot write to the folder")?;
        if lock.try_lock().is_err() {
            bail!("another demo is running in {}", path.display());
        }
        Ok(Self { path, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The token of the folder's admin API: the existing one, or a new one.
    pub(super) fn admin_token(&self) -> anyhow::Result<String> {
        let path = self.file("admin-token");
        let kept = fs::read_to_string(&path).unwrap_or_default();
        let kept = kept.trim();
        if kept.len() == 32 && kept.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Ok(kept.to_owned());
        }
        let token = random_hex::<16>().context("no randomness for the admin token")?;
        write_whole(&path, format!("{token}\n").as_bytes(), 0o600)
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(token)
    }

    /// Writes the gateway's configuration and returns its path.
    pub(super) fn write_config(&self, addresses: &Addresses) -> anyhow::Result<PathBuf> {
        let path = self.file("onlyonce.yaml");
        let text = config(addresses, &self.file("onlyonce.db"));
        write_whole(&path, text.as_bytes(), 0o644)
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

/// The address that a client on this machine connects to; `0.0.0.0` is only for listening.
pub(super) fn reachable(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => ([127, 0, 0, 1], v4.port()).into(),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => {
            (std::net::Ipv6Addr::LOCALHOST, v6.port()).into()
        }
        other => other,
    }
}

/// Replaces a file atomically: a reader finds the old content or the new, never a part.
pub(super) fn write_whole(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".new");
    // A draft left by a crash may have another mode.
    let _ = fs::remove_file(&draft);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&draft)?;
    file.write_all(content)?;
    fs::rename(&draft, path)
}

/// `2 * BYTES` random hexadecimal digits.
pub(super) fn random_hex<const BYTES: usize>() -> io::Result<String> {
    let mut bytes = [0; BYTES];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| io::Error::other("the system gave none"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn fresh_folder() -> io::Result<PathBuf> {
    let path = std::env::temp_dir().join(format!("onlyonce-demo-{}", random_hex::<4>()?));
    // For the owner only, and an error if it exists: others may write to the temporary folder.
    DirBuilder::new().mode(0o700).create(&path)?;
    Ok(path)
}

fn config(addresses: &Addresses, store: &Path) -> String {
    // Every JSON string is a YAML string, whatever the path contains.
    let quoted = |text: String| serde_json::Value::from(text).to_string();
    format!(
        "# Written by `onlyonce demo` at every start. An edit is taken up while the demo runs.\n\
         listen: {listen}\n\
         admin: {{ listen: {admin}, token_env: ONLYONCE_ADMIN_TOKEN }}\n\
         store: {{ url: {store} }}\n\
         # A short lease, so that a killed gateway's key turns unknown while you watch.\n\
         idempotency: {{ enabled: true, lease: 10s }}\n\
         workers: {{ sweep_every: 1s, reconcile_every: 1s }}\n\
         routes:\n\
         \x20 - id: payments\n\
         \x20   path: /\n\
         \x20   backends: [{{ url: {api} }}]\n\
         \x20   idempotency:\n\
         \x20     # What nobody saw is asked of the API itself, half a minute later.\n\
         \x20     reconcile:\n\
         \x20       query: {{ url: {query} }}\n\
         \x20       outcomes:\n\
         \x20         - {{ when: {{ status: [200] }}, complete: {{ status: 201, body: \"\" }} }}\n\
         \x20         - {{ when: {{ status: [404] }}, not_executed: true }}\n\
         \x20       upstream_max_execution: 10m\n\
         \x20       after: 30s\n",
        listen = quoted(addresses.listen.to_string()),
        admin = quoted(addresses.admin.to_string()),
        store = quoted(format!("sqlite:{}", store.display())),
        api = quoted(format!("http://{}", reachable(addresses.api))),
        query = quoted(format!(
            "http://{}/ledger/entry?key={{key}}",
            reachable(addresses.api)
        )),
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_folder_keeps_its_token_and_has_one_owner() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("a/demo");
        let folder = Folder::take(Some(path.clone())).unwrap();
        let token = folder.admin_token().unwrap();
        assert_eq!(token.len(), 32);
        let mode = fs::metadata(path.join("admin-token"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(
            Folder::take(Some(path.clone())).is_err(),
            "the folder is taken"
        );
        drop(folder);
        assert_eq!(
            Folder::take(Some(path)).unwrap().admin_token().unwrap(),
            token
        );
    }

    #[test]
    fn the_configuration_quotes_what_it_is_given() {
        let addresses = Addresses {
            listen: "[::1]:8080".parse().unwrap(),
            admin: "127.0.0.1:9090".parse().unwrap(),
            api: "0.0.0.0:3000".parse().unwrap(),
        };
        let text = config(&addresses, Path::new("/tmp/a \"b\"/onlyonce.db"));
        for line in [
            r#"listen: "[::1]:8080""#,
            r#"store: { url: "sqlite:/tmp/a \"b\"/onlyonce.db" }"#,
            r#"    backends: [{ url: "http://127.0.0.1:3000" }]"#,
            r#"        query: { url: "http://127.0.0.1:3000/ledger/entry?key={key}" }"#,
        ] {
            assert!(
                text.lines().any(|written| written == line),
                "{line}\n{text}"
            );
        }
    }
}
