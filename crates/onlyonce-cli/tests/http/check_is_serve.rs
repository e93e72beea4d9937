//! What `serve` refuses to start with, `check` refuses before.

use std::{
    path::Path,
    process::{Command, Output},
};

use crate::{harness::process::binary, postgres_schema::text};

/// A certificate, its key, and those of somebody else.
const TLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/http/verify/tls");

/// A file that is wrong: what stands at its top, what its route says, its environment, what is said about it, and
/// whether it is good on a machine without secrets.
struct Bad {
    top: &'static str,
    route: &'static str,
    env: &'static [(&'static str, &'static str)],
    said: &'static str,
    is_good_without_env: bool,
}

/// Without the variable, or with this value of it.
const fn secret(top: &'static str, value: &'static str, said: &'static str) -> Bad {
    Bad {
        top,
        route: "",
        env: match value.is_empty() {
            true => &[],
            false => &[("OO_SECRET", "short")],
        },
        said,
        is_good_without_env: true,
    }
}

const fn plain(top: &'static str, said: &'static str) -> Bad {
    Bad {
        top,
        route: "",
        env: &[],
        said,
        is_good_without_env: false,
    }
}

const WEBHOOK: &str = "idempotency: { enabled: true, reconcile: { webhook: { secret_env: OO_SECRET, key: /k, \
                       outcomes: [{ when: { pointer: /t, in: [a] }, complete: { status: 201, body: \"\" } }] } } }";

const BAD: &[Bad] = &[
    secret(
        "admin: { token_env: OO_SECRET }",
        "",
        "`token_env`: the environment variable OO_SECRET is not set",
    ),
    secret(
        "admin: { readonly_token_env: OO_SECRET }",
        "",
        "`readonly_token_env`: the environment variable",
    ),
    secret(
        "store: { url: \"sqlite:FOLDER/a.db\", encryption_key_env: OO_SECRET }",
        "",
        "OO_SECRET is not set",
    ),
    secret(
        "store: { url: \"sqlite:FOLDER/a.db\", encryption_key_env: OO_SECRET }",
        "short",
        "`encryption_key_env`: OO_SECRET",
    ),
    secret(
        "auth: { jwt: { secret_env: OO_SECRET, issuer: i, audience: a } }",
        "",
        "OO_SECRET",
    ),
    secret(
        "outbox: { targets: [{ name: a, url: \"http://127.0.0.1:1/\", secret_env: OO_SECRET }] }",
        "",
        "`secret_env`: the environment variable",
    ),
    secret(
        "outbox: { targets: [{ name: a, url: \"http://127.0.0.1:1/\", secret_env: OO_SECRET }] }",
        "short",
        "`secret_env`: OO_SECRET holds no usable secret",
    ),
    Bad {
        top: "",
        route: WEBHOOK,
        env: &[],
        said: "`secret_env`: the environment variable",
        is_good_without_env: true,
    },
    Bad {
        top: "",
        route: WEBHOOK,
        env: &[("OO_SECRET", " ")],
        said: "`secret_env`: OO_SECRET holds no usable secret",
        is_good_without_env: true,
    },
    plain(
        "tls: { cert: TLS/missing.pem, key: TLS/server.key }",
        "missing.pem",
    ),
    plain(
        "tls: { cert: TLS/server.pem, key: TLS/missing.key }",
        "missing.key",
    ),
    plain(
        "tls: { cert: TLS/server.pem, key: TLS/other.key }",
        "other.key",
    ),
    plain("tls: { cert: TLS/server.pem }", "`tls` without `key`"),
    plain(
        "auth: { jwt: { jwks_file: TLS/missing.json, issuer: i, audience: a } }",
        "missing.json",
    ),
    plain(
        "auth: { jwt: { public_key_file: TLS/README.md, issuer: i, audience: a } }",
        "README.md",
    ),
    plain(
        "auth: { api_keys: [{ client: acme, sha256: 00 }] }",
        "did you mean `client_id`?",
    ),
    plain(
        "listen: 127.0.0.1:9090",
        "`listen` and `admin.listen` are both",
    ),
    plain("store: { url: \"${OO_SECRET}\" }", "OO_SECRET"),
    plain(
        "store: { url: \"memory:\" }\noutbox: { targets: [{ name: a, url: \"http://127.0.0.1:1/\" }] }",
        "outbox",
    ),
    #[cfg(not(feature = "nats"))]
    plain(
        "outbox: { targets: [{ name: a, kind: nats, url: \"nats://127.0.0.1:1\", subject: s }] }",
        "built without `nats`",
    ),
];

fn run(command: &str, file: &Path, extra: &[&str], env: &[(&str, &str)]) -> Output {
    let mut process = Command::new(binary());
    process.arg(command).args(extra).env_remove("OO_SECRET");
    match command {
        "serve" => process.arg("--config").arg(file),
        _ => process.arg(file),
    };
    process.envs(env.iter().copied());
    process.output().expect("it runs")
}

/// Goal: a file that `check` finds good starts, as far as a file can say.
///
/// Method: both commands on the same bad files, in the same environment.
/// Evidence: both end with 1, and say the same; without secrets, `check --no-env` has nothing against those
/// whose variables alone are at fault.
#[test]
fn what_serve_refuses_check_refuses() {
    for bad in BAD {
        let folder = tempfile::TempDir::new().expect("a folder");
        let store = match bad.top.contains("store:") {
            true => "",
            false => "store: { url: \"sqlite:FOLDER/a.db\" }\n",
        };
        let admin = match bad.top.contains("admin:") || bad.top.contains(":9090") {
            true => "",
            false => "admin: { listen: \"127.0.0.1:0\" }\n",
        };
        let listen = match bad.top.contains("listen:") {
            true => "",
            false => "listen: 127.0.0.1:0\n",
        };
        let text_of_file = format!(
            "{}\n{listen}{store}{admin}routes:\n- id: a\n  path: /\n  backends: [{{ url: \"http://127.0.0.1:1\" }}]\n  {}\n",
            bad.top, bad.route
        );
        let place = folder.path().display().to_string();
        let yaml = text_of_file
            .replace("FOLDER", &place)
            .replace("TLS/", &format!("{TLS}/"));
        let file = folder.path().join("bad.yaml");
        std::fs::write(&file, &yaml).expect("the file is written");
        let checked = run("check", &file, &[], bad.env);
        let said = text(&checked.stderr);
        assert_eq!(
            checked.status.code(),
            Some(1),
            "check takes\n{yaml}\n{said}"
        );
        assert!(said.contains(bad.said), "{yaml}\n{said}");
        let served = run("serve", &file, &[], bad.env);
        assert_eq!(served.status.code(), Some(1), "serve takes\n{yaml}");
        let without = run("check", &file, &["--no-env"], bad.env);
        let code = i32::from(!bad.is_good_without_env);
        assert_eq!(
            without.status.code(),
            Some(code),
            "{yaml}\n{}",
            text(&without.stderr)
        );
    }
}
