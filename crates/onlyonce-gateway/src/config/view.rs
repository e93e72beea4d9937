//! The current configuration for operators: the file's names, every default filled in, and no secret.
//!
//! Most of it follows from the declarations of the fields. This file handles what has other names or another
//! form in the program than in the file.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use http::{HeaderName, HeaderValue, Method, StatusCode};
use onlyonce_core::fingerprint::Pointer;
use serde_json::{Value, json};

use super::{
    Backend, Config, Route,
    fields::OptionTable,
    setting::{Table, View},
    units::go_duration,
};

/// The replacement for a secret.
pub(super) const MASKED: &str = "***";

/// `config` as JSON.
pub fn view(config: &Config) -> Value {
    let mut shown = config.view();
    shown["limits"] = json!({ "held_bytes": config.held_bytes });
    shown["routes"] = config.routes.view();
    shown
}

impl View for Route {
    fn view(&self) -> Value {
        json!({
            "id": self.id,
            "path": self.path,
            "methods": self.methods.view(),
            "backends": self.backends.view(),
            "upstream_idle": self.upstream_idle.view(),
            "upstream_reuse": self.upstream_reuse,
            "connect_timeout": self.connect_timeout.view(),
            "first_byte_timeout": self.first_byte_timeout.view(),
            "auth": if self.auth_optional { "optional" } else { "required" },
            "cors": self.cors.as_ref().map(|cors| {
                let mut shown = cors.view();
                shown["expose_headers"] = cors.exposed(&self.policy).view();
                shown
            }),
            "idempotency": OptionTable::view(self),
        })
    }
}

impl View for Backend {
    fn view(&self) -> Value {
        json!({
            "url": url(self, &self.prefix),
            "weight": self.weight,
            "ca_file": self.tls.as_ref().and_then(|trust| trust.path()),
            "http2": self.http2,
        })
    }
}

pub(super) fn url(backend: &Backend, path: &str) -> String {
    let (scheme, host, port) = (backend.scheme(), &backend.host, backend.port);
    match host.contains(':') {
        true => format!("{scheme}://[{host}]:{port}{path}"),
        false => format!("{scheme}://{host}:{port}{path}"),
    }
}

macro_rules! views {
    ($($type:ty: |$value:ident| $view:expr;)*) => {$(
        impl View for $type {
            fn view(&self) -> Value {
                let $value = self;
                json!($view)
            }
        }
    )*};
}

views! {
    Duration: |value| go_duration(*value);
    HeaderName: |value| value.as_str();
    HeaderValue: |value| String::from_utf8_lossy(value.as_bytes());
    Method: |value| value.as_str();
    Path: |value| value;
    PathBuf: |value| value;
    Pointer: |value| value.to_string();
    SocketAddr: |value| value.to_string();
    StatusCode: |value| value.as_u16();
    String: |value| value;
    str: |value| value;
    u16: |value| value;
    u32: |value| value;
    u64: |value| value;
    usize: |value| value;
}

impl<T: View> View for Option<T> {
    fn view(&self) -> Value {
        self.as_ref().map_or(Value::Null, View::view)
    }
}

impl<T: View> View for Vec<T> {
    fn view(&self) -> Value {
        self.as_slice().view()
    }
}

impl<T: View> View for [T] {
    fn view(&self) -> Value {
        self.iter().map(View::view).collect()
    }
}

impl View for Value {
    fn view(&self) -> Value {
        self.clone()
    }
}
