//! The real binary: written a config, started, stopped, killed, paused and started again.
//!
//! Its output goes through pipes into memory, not into files: some tests take away its right to
//! write files, and its logs must survive that.

use std::{
    io,
    net::SocketAddr,
    process::ExitStatus,
    sync::{Arc, Mutex},
};

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use tempfile::TempDir;

use super::{
    Upstream,
    client::{self, Request, Response},
    eventually,
    process::{Exit, Launch, Running, spawn},
    within,
};

/// How a gateway is set up before it starts. Options are the inside of a YAML flow mapping.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    store: Option<String>,
    redis_address: Option<String>,
    store_options: String,
    idempotency: String,
    path: String,
    backends: Option<String>,
    route: String,
    admin: String,
    workers: String,
    top: String,
    ignores_full_disk: bool,
    log_level: &'static str,
    env: Vec<(String, String)>,
}

impl Setup {
    /// The defaults with these idempotency options beside `enabled: true`.
    pub(crate) fn with(idempotency: &str) -> Self {
        Self {
            store: None,
            redis_address: None,
            store_options: String::new(),
            idempotency: idempotency.to_owned(),
            path: "/".to_owned(),
            backends: None,
            route: String::new(),
            admin: String::new(),
            // Loops run often, so that what they do is seen within a test's patience.
            workers: "sweep_every: 200ms, reap_every: 200ms".to_owned(),
            top: String::new(),
            ignores_full_disk: false,
            log_level: "info",
            env: Vec::new(),
        }
    }

    /// Another store than SQLite in the gateway's folder.
    pub(crate) fn store(mut self, url: &str) -> Self {
        self.store = Some(url.to_owned());
        self
    }

    /// A Redis server as the store, in the form of older gateways.
    pub(crate) fn redis_address(mut self, address: &str) -> Self {
        self.redis_address = Some(address.to_owned());
        self
    }

    /// More options of the store, `timeout: 1s` for instance.
    pub(crate) fn store_options(mut self, options: &str) -> Self {
        self.store_options = format!(", {options}");
        self
    }

    /// A variable in the environment of the process.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Another path for the one route.
    pub(crate) fn path(mut self, path: &str) -> Self {
        self.path = path.to_owned();
        self
    }

    /// A line for the one route, `timeout: 1s` for instance.
    pub(crate) fn route(mut self, line: &str) -> Self {
        self.route.push_str(&format!("    {line}\n"));
        self
    }

    /// Other backends for the one route than the upstream it is started before.
    pub(crate) fn replacing_backends(mut self, line: &str) -> Self {
        self.backends = Some(line.to_owned());
        self
    }

    /// More options of the admin listener.
    pub(crate) fn admin(mut self, options: &str) -> Self {
        self.admin = format!(", {options}");
        self
    }

    pub(crate) fn workers(mut self, options: &str) -> Self {
        self.workers = options.to_owned();
        self
    }

    /// A line at the top level.
    pub(crate) fn top(mut self, line: &str) -> Self {
        self.top.push_str(&format!("{line}\n"));
        self
    }

    /// Prepares for [`Gateway::fill_disk`]: a write beyond the limit fails instead of killing.
    pub(crate) fn can_fill_disk(mut self) -> Self {
        self.ignores_full_disk = true;
        self
    }

    /// The noisiest logs there are.
    pub(crate) fn trace(mut self) -> Self {
        self.log_level = "trace";
        self
    }

    /// Logs of what fails only: of a store that is away, each request would tell.
    pub(crate) fn quiet(mut self) -> Self {
        self.log_level = "onlyonce_store=info,off";
        self
    }

    fn yaml(&self, folder: &str, upstream: &str) -> String {
        let store = self
            .store
            .clone()
            .unwrap_or_else(|| format!("sqlite:{folder}/onlyonce.db"));
        let store = match &self.redis_address {
            Some(address) => format!("redis:\n  address: \"{address}\""),
            None => format!("store: {{ url: \"{store}\"{} }}", self.store_options),
        };
        let comma = if self.idempotency.is_empty() {
            ""
        } else {
            ", "
        };
        const TOKEN: &str = "ONLYONCE_ADMIN_TOKEN";
        // Who names a variable that is empty does not start; who names none has no token.
        let token = match self
            .env
            .iter()
            .any(|(name, value)| name == TOKEN && value.is_empty())
        {
            true => String::new(),
            false => format!(", token_env: {TOKEN}"),
        };
        format!(
            "listen: 127.0.0.1:0\n\
             admin: {{ listen: 127.0.0.1:0{token}{admin} }}\n\
             {store}\n\
             workers: {{ {workers} }}\n\
             {top}\
             idempotency: {{ enabled: true{comma}{options} }}\n\
             routes:\n  - id: r\n    path: {path}\n    {backends}\n{route}",
            backends = self
                .backends
                .clone()
                .unwrap_or_else(|| format!("backends: [{{ url: \"{upstream}\" }}]")),
            workers = self.workers,
            top = self.top,
            options = self.idempotency,
            admin = self.admin,
            path = self.path,
            route = self.route,
        )
    }

    /// Starts a gateway in a folder of its own.
    pub(crate) async fn start(self, upstream: &Upstream) -> Gateway {
        self.start_before(&upstream.url()).await
    }

    /// The same before any URL.
    pub(crate) async fn start_before(self, upstream: &str) -> Gateway {
        let folder = Arc::new(TempDir::new().expect("a folder for the gateway"));
        match self.start_in(folder, upstream).await {
            Ok(gateway) => gateway,
            Err(exit) => panic!(
                "the gateway did not start: {:?}\n{}",
                exit.status, exit.logs
            ),
        }
    }

    /// Starts in a given folder, which may belong to another gateway; or says how it ended.
    pub(crate) async fn start_in(
        self,
        folder: Arc<TempDir>,
        upstream: &str,
    ) -> Result<Gateway, Exit> {
        let path = folder.path().to_str().expect("a folder with a plain name");
        let config = tempfile::Builder::new()
            .suffix(".yaml")
            .tempfile_in(folder.path())
            .and_then(|file| file.keep().map_err(io::Error::from))
            .expect("a config file")
            .1;
        std::fs::write(&config, self.yaml(path, upstream)).expect("a written config");
        let logs = Arc::new(Mutex::new(String::new()));
        let launch = Launch {
            config,
            full_disk: self.ignores_full_disk,
            log: self.log_level,
            env: self.env,
        };
        let running = spawn(&launch, &logs).await?;
        Ok(Gateway {
            running,
            folder,
            launch,
            logs,
        })
    }
}

/// A gateway that was started; killed when dropped.
pub(crate) struct Gateway {
    running: Running,
    folder: Arc<TempDir>,
    launch: Launch,
    logs: Arc<Mutex<String>>,
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the gateway said:\n{}", self.logs());
        }
    }
}

impl Gateway {
    /// A gateway with these idempotency options before `upstream`.
    pub(crate) async fn start(upstream: &Upstream, idempotency: &str) -> Self {
        Setup::with(idempotency).start(upstream).await
    }

    pub(crate) fn data(&self) -> SocketAddr {
        self.running.data
    }

    pub(crate) fn admin_addr(&self) -> SocketAddr {
        self.running.admin
    }

    pub(crate) fn folder(&self) -> Arc<TempDir> {
        Arc::clone(&self.folder)
    }

    /// Everything it has printed so far, standard output and standard error.
    pub(crate) fn logs(&self) -> String {
        self.logs
            .lock()
            .map(|logs| logs.clone())
            .unwrap_or_default()
    }

    /// Waits until `text` stands in what it said: it is read beside the test, so a moment later.
    pub(crate) async fn says(&self, text: &str) {
        eventually(text, async || self.logs().contains(text).then_some(())).await;
    }

    /// One request over a connection of its own.
    pub(crate) async fn send(&self, request: &Request) -> Response {
        self.try_send(request)
            .await
            .expect("an answer from the gateway")
    }

    pub(crate) async fn try_send(&self, request: &Request) -> io::Result<Response> {
        client::send(self.data(), request).await
    }

    /// The same request `count` times at once, each over a connection of its own.
    pub(crate) fn send_many(
        &self,
        count: usize,
        request: &Request,
    ) -> Vec<tokio::task::JoinHandle<Response>> {
        (0..count).map(|_| self.send_later(request)).collect()
    }

    /// Sends in the background.
    pub(crate) fn send_later(&self, request: &Request) -> tokio::task::JoinHandle<Response> {
        let (addr, request) = (self.data(), request.clone());
        tokio::spawn(async move { client::send(addr, &request).await.expect("an answer") })
    }

    /// The id of its process.
    pub(crate) fn pid(&self) -> u32 {
        let id = self.running.child.id();
        id.expect("the gateway has not been waited for")
    }

    fn signal(&self, signal: Signal) {
        let id = self.pid();
        let pid = Pid::from_raw(id.cast_signed()).expect("a process id");
        kill_process(pid, signal).expect("a signal to our own child");
    }

    pub(crate) async fn kill9(&mut self) {
        self.signal(Signal::KILL);
        self.exited().await;
    }

    pub(crate) fn sigterm(&self) {
        self.signal(Signal::TERM);
    }

    pub(crate) fn sighup(&self) {
        self.signal(Signal::HUP);
    }

    /// Its configuration as it stands in the file.
    pub(crate) fn config(&self) -> String {
        std::fs::read_to_string(&self.launch.config).expect("a config file")
    }

    /// Puts another configuration in its place, whole, as an editor or a deployment does.
    pub(crate) fn reconfigure(&self, yaml: &str) {
        let beside = self.launch.config.with_extension("new");
        std::fs::write(&beside, yaml).expect("a written config");
        std::fs::rename(beside, &self.launch.config).expect("a config in its place");
    }

    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn wake(&self) {
        self.signal(Signal::CONT);
    }

    /// The environment of the next restart, instead of the one it was set up with.
    pub(crate) fn set_env(&mut self, env: &[(&str, &str)]) {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        self.launch.env = env.iter().map(owned).collect();
    }

    /// The letter for its state in `/proc`: `T` when it is stopped.
    pub(crate) fn process_state(&self) -> Option<char> {
        let id = self.running.child.id()?;
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        stat.rsplit(')').next()?.trim_start().chars().next()
    }

    /// Waits for its end, and for the end of what it says.
    pub(crate) async fn exited(&mut self) -> ExitStatus {
        let ended = within("the gateway to end", self.running.child.wait()).await;
        for heard in &mut self.running.heard {
            if !heard.is_finished() {
                let _ = within("the last of its words", heard).await;
            }
        }
        ended.expect("an exit status")
    }

    /// Starts it again on the same folder and config, after it has ended. Ports may be new.
    pub(crate) async fn restart(&mut self) {
        match spawn(&self.launch, &self.logs).await {
            Ok(running) => self.running = running,
            Err(exit) => panic!("the gateway did not start again: {exit:?}"),
        }
    }

    /// The memory that the process holds, in KiB.
    pub(crate) fn rss_kib(&self) -> u64 {
        self.status_kib("VmRSS:")
    }

    /// The most that it ever held, in KiB.
    pub(crate) fn peak_rss_kib(&self) -> u64 {
        self.status_kib("VmHWM:")
    }

    /// From now on the process gets no more than `bytes` of memory of its own, and dies of wanting more.
    pub(crate) fn cap_memory(&self, bytes: u64) {
        let id = self.running.child.id().expect("a running gateway");
        let limit = Rlimit {
            current: Some(bytes),
            maximum: Some(bytes),
        };
        prlimit(Pid::from_raw(id.cast_signed()), Resource::Data, limit).expect("a memory limit");
    }

    fn status_kib(&self, name: &str) -> u64 {
        let id = self.running.child.id().expect("a running gateway");
        let status = std::fs::read_to_string(format!("/proc/{id}/status"))
            .expect("the gateway is still running");
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok())
            .expect("a line in KiB")
    }

    /// From now on no file of the gateway may be written; `false` lifts that again.
    pub(crate) fn fill_disk(&self, full: bool) {
        assert!(self.launch.full_disk, "set up with can_fill_disk");
        let id = self.running.child.id().expect("a running gateway");
        let limit = Rlimit {
            current: full.then_some(0),
            maximum: None,
        };
        prlimit(Pid::from_raw(id.cast_signed()), Resource::Fsize, limit)
            .expect("a file size limit");
    }
}
