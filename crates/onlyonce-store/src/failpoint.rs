//! Named points at which a test makes this process die or freeze.
//!
//! Without the feature `failpoints`, which is off by default, `failpoint!` is nothing at all. With
//! it, `ONLYONCE_FAILPOINT=name[:nth]=abort|kill|stop` makes the nth hit of that point write its name
//! into the file that `ONLYONCE_FAILPOINT_FILE` names, and then end or stop the process. And
//! `ONLYONCE_WITHOUT_HEARTBEATS` keeps attempts from renewing their leases, so that a lease lapses
//! while its execution is alive, as it otherwise does only in a process that was paused.
//!
//! This is the lowest crate that writes anything, so the module is here. The test `crash_points` reads the
//! names from the source, so they must be literals inside the macro.

/// Marks a point by its name, or by an expression that chooses among literal names, or `None`.
#[cfg(not(feature = "failpoints"))]
#[doc(hidden)]
#[macro_export]
macro_rules! failpoint {
    ($name:expr) => {{}};
}

/// Marks a point by its name, or by an expression that chooses among literal names, or `None`.
#[cfg(feature = "failpoints")]
#[doc(hidden)]
#[macro_export]
macro_rules! failpoint {
    ($name:expr) => {
        $crate::failpoint::hit($name)
    };
}

#[cfg(feature = "failpoints")]
pub use armed::hit;

/// Whether attempts must not renew their leases; never without the feature `failpoints`.
#[doc(hidden)]
#[must_use]
pub fn without_heartbeats() -> bool {
    cfg!(feature = "failpoints") && std::env::var_os("ONLYONCE_WITHOUT_HEARTBEATS").is_some()
}

#[cfg(feature = "failpoints")]
mod armed {
    use std::{
        sync::{
            LazyLock,
            atomic::{AtomicU32, Ordering},
        },
        thread,
        time::Duration,
    };

    use rustix::process::{Signal, getpid, kill_process};

    /// SIGSTOP reaches the sending thread slightly later than the process; until then that thread must not
    /// continue.
    const STOP_SETTLES_IN: Duration = Duration::from_millis(100);

    enum Action {
        Abort,
        Kill,
        Stop,
    }

    struct Armed {
        name: String,
        nth: u32,
        action: Action,
        hits: AtomicU32,
    }

    static ARMED: LazyLock<Option<Armed>> = LazyLock::new(|| {
        let wish = std::env::var("ONLYONCE_FAILPOINT").ok()?;
        Some(parse(&wish).expect("ONLYONCE_FAILPOINT is name[:nth]=abort|kill|stop"))
    });

    fn parse(wish: &str) -> Option<Armed> {
        let (point, action) = wish.split_once('=')?;
        let (name, nth) = match point.split_once(':') {
            Some((name, nth)) => (name, nth.parse().ok()?),
            None => (point, 1),
        };
        let action = match action {
            "abort" => Action::Abort,
            "kill" => Action::Kill,
            "stop" => Action::Stop,
            _ => return None,
        };
        let name = name.to_owned();
        let hits = AtomicU32::new(0);
        Some(Armed {
            name,
            nth,
            action,
            hits,
        })
    }

    /// Called when the point `name` is reached.
    pub fn hit(name: impl Into<Option<&'static str>>) {
        let (Some(armed), Some(name)) = (&*ARMED, name.into()) else {
            return;
        };
        if armed.name != name || armed.hits.fetch_add(1, Ordering::SeqCst) + 1 != armed.nth {
            return;
        }
        if let Some(file) = std::env::var_os("ONLYONCE_FAILPOINT_FILE") {
            std::fs::write(file, name).expect("the test's file can be written");
        }
        let signal = |signal| kill_process(getpid(), signal).expect("a signal to this process");
        match armed.action {
            Action::Abort => std::process::abort(),
            Action::Kill => signal(Signal::KILL),
            Action::Stop => signal(Signal::STOP),
        }
        thread::sleep(STOP_SETTLES_IN);
    }
}
