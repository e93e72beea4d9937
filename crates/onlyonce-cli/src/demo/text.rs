//! The text that the demo prints at its start: addresses, paths, and commands to paste.
//!
//! Every command contains the real ports and paths. The keys end in a tag of this run, so that a reused
//! folder starts with new keys.

use std::net::SocketAddr;
use std::path::Path;

#[cfg(test)]
mod tests;

// Options for what `curl` shows of an answer. `-w` adds the line break that a body lacks. The fifty
// concurrent requests show no body, because their outputs would mix.
const WHOLE: &str = r"-si -w '\n'";
const BODY: &str = r"-s -w '\n'";
const STATUS: &str = r"-so /dev/null -w '%{http_code} %{size_download} bytes\n'";
const IMPATIENT: &str = r"-s --max-time 0.5 -w '\n'";

/// Extracts the id from a list of one key, without needing `jq`.
const PICK_ID: &str = r#"sed -n 's/.*"id": *"\{0,1\}\([^",]*\).*/\1/p'"#;

const RESOLUTION: &str = r#"{"outcome":"completed","reason":"found in the ledger",
     "response":{"status":201,"headers":{"Content-Type":"application/json"},
     "body":"{\"status\":\"succeeded\"}"}}"#;

/// Everything that the text mentions.
pub(super) struct Facts<'a> {
    pub(super) gateway: SocketAddr,
    pub(super) gateway_pid: u32,
    pub(super) admin: SocketAddr,
    pub(super) api: SocketAddr,
    pub(super) api_pid: u32,
    pub(super) page: SocketAddr,
    pub(super) folder: &'a Path,
    pub(super) token: &'a str,
    /// Makes the keys of this run unique.
    pub(super) tag: &'a str,
}

/// The whole text.
pub(super) fn welcome(facts: &Facts<'_>) -> String {
    format!(
        "{}\nTry this in another terminal.\n\n{}{}{}{}",
        places(facts),
        repeated(facts),
        concurrent(facts),
        unknown(facts),
        ending(facts)
    )
}

fn places(facts: &Facts<'_>) -> String {
    let Facts {
        gateway,
        gateway_pid,
        admin,
        api,
        api_pid,
        page,
        token,
        ..
    } = facts;
    let folder = facts.folder.display();
    format!(
        "OnlyOnce demo: a gateway in front of a payments API that never looks for duplicates.

  page      http://{page}   press buttons and watch two ledgers
  gateway   http://{gateway}   pid {gateway_pid}; a killed one is started again
  admin     http://{admin}   the dashboard; figures at http://{admin}/idempotency
  token     {token}
  API       http://{api}   pid {api_pid}; it writes down every payment it makes
  folder    {folder}   kept: ledger, keys, configuration, logs
"
    )
}

fn repeated(facts: &Facts<'_>) -> String {
    let once = Call {
        facts,
        key: "once",
        flags: WHOLE,
        fault: "",
        amount: 1000,
    };
    let other = Call {
        amount: 9999,
        ..once
    };
    format!(
        "1. Pay once: 201.
   {once}

2. Send it again: the same bytes, and X-Idempotent-Replayed: true.
   {once}

3. The same key for another amount: 422 idempotency_key_reused.
   {other}

"
    )
}

fn concurrent(facts: &Facts<'_>) -> String {
    let fifty = Call {
        facts,
        key: "fifty",
        flags: STATUS,
        fault: "",
        amount: 500,
    };
    let slow = Call {
        facts,
        key: "slow",
        flags: BODY,
        fault: "slow=3000",
        amount: 700,
    };
    let second = Call {
        flags: WHOLE,
        fault: "",
        ..slow
    };
    let left = Call {
        key: "left",
        flags: IMPATIENT,
        fault: "slow=2000",
        ..slow
    };
    let retry = Call {
        key: "left",
        ..second
    };
    let (count_fifty, count_slow) = (count(facts, "fifty"), count(facts, "slow"));
    let count_left = count(facts, "left");
    format!(
        "4. Fifty duplicates at once: 50 times 201 with the same size, and the API's ledger counts 1.
   seq 50 | xargs -P50 -I{{}} \\
     {fifty} | sort | uniq -c
   {count_fifty}

5. A payment that takes 3 s, and a duplicate 1 s later: it waits for the first. Ledger: 1.
   {slow} &
   sleep 1; {second}; wait
   {count_slow}

6. The client hangs up after 0.5 s; the payment runs on and the retry gets its answer. Ledger: 1.
   {left}
   {retry}
   {count_left}

"
    )
}

fn unknown(facts: &Facts<'_>) -> String {
    let cut = Call {
        facts,
        key: "cut",
        flags: WHOLE,
        fault: "hang-up",
        amount: 800,
    };
    let cut_again = Call { fault: "", ..cut };
    let dies = Call {
        key: "dies",
        flags: BODY,
        fault: "slow=2000",
        ..cut
    };
    let dies_again = Call {
        key: "dies",
        ..cut_again
    };
    let admin = format!("http://{}/idempotency/keys", facts.admin);
    let tag = facts.tag;
    let token = quoted(&facts.folder.join("admin-token"));
    let pid_file = quoted(&facts.folder.join("gateway.pid"));
    let authorization = format!("-H \"Authorization: Bearer $(cat {token})\"");
    let (count_cut, count_dies) = (count(facts, "cut"), count(facts, "dies"));
    format!(
        "7. The API books the payment and hangs up: 502, and nobody can know. The retry gets 409
   idempotency_outcome_unknown and executes nothing. Ledger: 1.
   {cut}
   {cut_again}
   {count_cut}

   As an operator, find the key and, since the ledger has it, resolve it before the gateway does
   that itself: the retry gets 201.
   ID=$(curl -s {authorization} '{admin}?key=cut-{tag}' |
     {PICK_ID})
   curl -s {authorization} {admin}/$ID/resolve \\
     -H 'Content-Type: application/json' -d '{RESOLUTION}'; echo
   {cut_again}

8. Kill the gateway in the middle of a payment. It is started again; the retry waits until the
   dead one's lease of 10 s has lapsed and gets 409 idempotency_outcome_unknown. Ledger: 1.
   {dies} &
   sleep 1; kill -9 $(cat {pid_file}); wait; sleep 2
   {dies_again}
   {count_dies}

   Wait. Half a minute after that the gateway asks the API what became of the key, and what it
   finds in the ledger is the answer: the retry gets 201, and nothing was executed again.
   sleep 40; {dies_again}
   {count_dies}

"
    )
}

fn ending(facts: &Facts<'_>) -> String {
    let Facts { api, admin, .. } = facts;
    let folder = quoted(facts.folder);
    let token = quoted(&facts.folder.join("admin-token"));
    format!(
        "9. All payments the API ever made, its ledger, and what the gateway has counted since its
   last start.
   curl -s http://{api}/ledger/count
   curl -s http://{api}/ledger; echo
   curl -s -H \"Authorization: Bearer $(cat {token})\" http://{admin}/idempotency; echo

The header Demo-Fault makes the API misbehave. Before it books: slow=MS, fail, status=NNN, decline,
not-executed, hang-up-before. After: slow-after=MS, fail-after, hang-up, big=BYTES, binary, empty,
chunked. Commas combine.
Ctrl-C ends the demo; `onlyonce demo --dir {folder}` goes on with this folder.
"
    )
}

/// One `curl` command for a payment, over two lines with the indent of the text.
#[derive(Clone, Copy)]
struct Call<'a> {
    facts: &'a Facts<'a>,
    key: &'a str,
    flags: &'a str,
    fault: &'a str,
    amount: u32,
}

impl std::fmt::Display for Call<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            facts,
            key,
            flags,
            fault,
            amount,
        } = self;
        write!(f, "curl {flags} http://{}/payments ", facts.gateway)?;
        write!(f, "-H 'Idempotency-Key: {key}-{}'", facts.tag)?;
        if !fault.is_empty() {
            write!(f, " -H 'Demo-Fault: {fault}'")?;
        }
        write!(f, " \\\n     -H 'Content-Type: application/json' ")?;
        let order = format!(r#"{{"amount":{amount},"currency":"eur","customer":"ada"}}"#);
        write!(f, "-d '{order}'")
    }
}

fn count(facts: &Facts<'_>, key: &str) -> String {
    format!(
        "curl -s 'http://{}/ledger/count?key={key}-{}'",
        facts.api, facts.tag
    )
}

/// The path quoted as one word for a POSIX shell.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%".contains(c);
    if text.chars().all(plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}
