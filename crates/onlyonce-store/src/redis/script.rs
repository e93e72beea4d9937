//! The Lua scripts, and how they are called.

use std::sync::LazyLock;

use redis::{Cmd, ToRedisArgs};

/// A script: its source, and the hash by which servers know it.
pub(super) struct Script {
    source: &'static str,
    sha: String,
}

macro_rules! scripts {
    ($($name:ident = $file:literal;)*) => {
        $(
            pub(super) static $name: LazyLock<Script> = LazyLock::new(|| {
                Script::new(concat!(include_str!("common.lua"), include_str!($file)))
            });
        )*
    };
}

scripts! {
    INSERT = "insert.lua";
    SWAP = "swap.lua";
    DELETE = "delete.lua";
    LOOKUP = "lookup.lua";
    APPEND = "append.lua";
    PASSED = "passed.lua";
    PRUNE = "prune.lua";
    META = "meta.lua";
    PROBE = "probe.lua";
    EPOCH = "epoch.lua";
    PUT = "put.lua";
}

impl Script {
    fn new(source: &'static str) -> Self {
        let sha = redis::Script::new(source).get_hash().to_owned();
        Self { source, sha }
    }

    /// A call by the script's hash.
    pub(super) fn call(&'static self, keys: &[Vec<u8>]) -> Call {
        let mut call = Call {
            script: Some(self),
            command: Cmd::new(),
        };
        call.command.arg("EVALSHA").arg(&self.sha).arg(keys.len());
        for key in keys {
            call.command.arg(key);
        }
        call
    }
}

/// A command, or a call of a script.
pub(super) struct Call {
    script: Option<&'static Script>,
    pub(super) command: Cmd,
}

impl Call {
    /// A plain command.
    pub(super) fn plain(name: &str) -> Self {
        let mut command = Cmd::new();
        command.arg(name);
        Self {
            script: None,
            command,
        }
    }

    pub(super) fn arg(mut self, argument: impl ToRedisArgs) -> Self {
        self.command.arg(argument);
        self
    }

    /// The same call with the script's source instead of its hash; `None` for a plain command.
    pub(super) fn with_source(&self) -> Option<Cmd> {
        let script = self.script?;
        let mut whole = Cmd::new();
        whole.arg("EVAL").arg(script.source);
        for argument in self.command.args_iter().skip(2) {
            match argument {
                redis::Arg::Simple(bytes) => whole.arg(bytes),
                _ => return None,
            };
        }
        Some(whole)
    }
}
