//! The two ledgers held against each other. The provider's is read once, row by row, into what is needed
//! of it; ours is walked page by page.

use std::{collections::HashMap, fmt, io::BufRead, time::SystemTime};

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::{
    csv::Reader,
    ours,
    rules::{LedgerRules, Says},
};
use crate::keys::Way;

/// How the columns of the ledger are called.
pub(super) struct Columns {
    pub(super) key: String,
    pub(super) client: String,
    pub(super) at: String,
}

/// What is kept of a row of the provider.
struct Row {
    line: u64,
    says: Says,
    /// Whether it is of the time that is compared.
    in_time: bool,
    met: bool,
}

/// What is compared of a record of ours.
pub(super) struct Ours {
    pub(super) key: String,
    pub(super) client: String,
    pub(super) state: String,
    /// The hundred of the stored answer's status.
    pub(super) hundred: Option<u16>,
    /// Whether it is of the time that is compared.
    pub(super) in_time: bool,
}

/// Something that the two sides do not agree on.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Difference {
    what: What,
    key: String,
    client: String,
    line: Option<u64>,
    detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// The provider has it and we do not.
    MissingHere,
    /// We have it and the provider does not.
    MissingThere,
    /// Both have it and say different things.
    Differs,
    /// The provider has it more than once.
    Twice,
}

impl What {
    fn word(self) -> &'static str {
        match self {
            Self::MissingHere => "missing_here",
            Self::MissingThere => "missing_there",
            Self::Differs => "differs",
            Self::Twice => "twice",
        }
    }
}

/// A comparison that is under way.
pub(super) struct Comparison {
    rows: HashMap<(String, String), Row>,
    has_clients: bool,
    until: Option<SystemTime>,
    found: Vec<Difference>,
    read: u64,
    walked: u64,
}

impl Comparison {
    /// Reads the provider's ledger.
    pub(super) fn read(
        ledger: impl BufRead,
        columns: &Columns,
        rules: &LedgerRules,
        (since, until): (SystemTime, Option<SystemTime>),
    ) -> anyhow::Result<Self> {
        let mut reader = Reader::new(ledger);
        let header = reader.next()?.context("the provider's ledger is empty")?;
        let place = |name: &str| header.iter().position(|column| column == name);
        let Some(key_at) = place(&columns.key) else {
            bail!("the provider's ledger has no column `{}`", columns.key);
        };
        let (client_at, time_at) = (place(&columns.client), place(&columns.at));
        let mut this = Self {
            rows: HashMap::new(),
            has_clients: client_at.is_some(),
            until,
            found: Vec::new(),
            read: 0,
            walked: 0,
        };
        while let Some(cells) = reader.next()? {
            let line = reader.line;
            if cells.len() != header.len() {
                bail!(
                    "line {line}: {} fields instead of {}",
                    cells.len(),
                    header.len()
                );
            }
            let cell = |place: Option<usize>| place.map_or("", |place| cells[place].as_str());
            let in_time = match cell(time_at) {
                "" => true,
                text => {
                    let at = super::moment(text)
                        .with_context(|| format!("line {line}: `{text}` is not a time"))?;
                    at >= since && until.is_none_or(|until| at <= until)
                }
            };
            this.read += 1;
            let says = rules.judge(&header, &cells);
            let name = (cells[key_at].clone(), cell(client_at).to_owned());
            let row = Row {
                line,
                says,
                in_time,
                met: false,
            };
            this.add(name, row);
        }
        Ok(this)
    }

    fn add(&mut self, name: (String, String), row: Row) {
        let executed = |row: &Row| matches!(row.says, Says::Complete(2));
        match self.rows.get(&name) {
            Some(before) if executed(before) && executed(&row) && row.in_time => {
                let detail = format!("the provider has it in line {} as well", before.line);
                self.note(What::Twice, &name.0, &name.1, Some(row.line), detail);
            }
            // The last word counts, unless it takes back an execution.
            Some(before) if executed(before) => {}
            _ => {
                self.rows.insert(name, row);
            }
        }
    }

    fn note(&mut self, what: What, key: &str, client: &str, line: Option<u64>, detail: String) {
        self.found.push(Difference {
            what,
            key: key.to_owned(),
            client: client.to_owned(),
            line,
            detail,
        });
    }

    /// A record of ours, of the time that is compared or before it.
    pub(super) fn meet(&mut self, ours: &Ours) {
        self.walked += u64::from(ours.in_time);
        let client = match self.has_clients {
            true => ours.client.clone(),
            false => String::new(),
        };
        let name = (ours.key.clone(), client);
        let executed = ours.state == "completed" && ours.hundred == Some(2);
        let Some(row) = self.rows.get_mut(&name) else {
            if executed && ours.in_time {
                let detail = "completed here, and the provider does not have it".to_owned();
                self.note(What::MissingThere, &name.0, &ours.client, None, detail);
            }
            return;
        };
        row.met = true;
        let (line, says) = (row.line, row.says);
        let agrees = match says {
            Says::Complete(hundred) => match ours.state.as_str() {
                "completed" => ours.hundred == Some(hundred),
                // Its answer is gone, and with it what could be compared.
                "expired" => true,
                _ => false,
            },
            Says::NotExecuted => !executed,
            Says::Nothing => true,
        };
        if !agrees {
            let theirs = match says {
                Says::Complete(hundred) => format!("completed with {hundred}xx"),
                Says::NotExecuted | Says::Nothing => "not executed".to_owned(),
            };
            let here = match ours.hundred {
                Some(hundred) => format!("{} with {hundred}xx", ours.state),
                None => ours.state.clone(),
            };
            let detail = format!("{here} here, {theirs} there");
            self.note(What::Differs, &name.0, &ours.client, Some(line), detail);
        }
    }

    /// Whether a record of this time is still compared.
    pub(super) fn is_before_the_end(&self, at: SystemTime) -> bool {
        self.until.is_none_or(|until| at <= until)
    }

    /// Everything that differs. Rows that were not met are looked for one by one: a record may be older
    /// than its row.
    pub(super) async fn finish(
        &mut self,
        way: &Way,
        route: &str,
    ) -> anyhow::Result<Vec<Difference>> {
        let left: Vec<(String, String)> = self
            .rows
            .iter()
            .filter(|(_, row)| row.in_time && !row.met && matches!(row.says, Says::Complete(_)))
            .map(|(name, _)| name.clone())
            .collect();
        for (key, client) in left {
            match ours::one(way, route, &key, &client).await? {
                Some(ours) => self.meet(&ours),
                None => {
                    let line = self
                        .rows
                        .get(&(key.clone(), client.clone()))
                        .map(|row| row.line);
                    let detail = "the provider has it, and there is no record here".to_owned();
                    self.note(What::MissingHere, &key, &client, line, detail);
                }
            }
        }
        let mut found = std::mem::take(&mut self.found);
        found.sort();
        Ok(found)
    }

    /// Rows of the provider, and records of ours.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.read, self.walked)
    }
}

impl Difference {
    pub(super) fn json(&self) -> Value {
        json!({
            "difference": self.what.word(),
            "key": self.key,
            "client": self.client,
            "line": self.line,
            "detail": self.detail,
        })
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What could steer a terminal is left out.
        let key = self.key.replace(char::is_control, "?");
        write!(f, "{:<13} {key}", self.what.word())?;
        if !self.client.is_empty() {
            write!(f, " of {}", self.client.replace(char::is_control, "?"))?;
        }
        if let Some(line) = self.line {
            write!(f, " (line {line})")?;
        }
        write!(f, ": {}", self.detail)
    }
}
