//! Compares the two ledgers. The provider's is read once, row by row, and only what is needed is kept; ours
//! is read page by page.

use std::{collections::HashMap, fmt, io::BufRead, time::SystemTime};

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::{
    csv::Reader,
    moment, ours,
    rules::{LedgerRules, Says},
};
use crate::{cli::Usage, keys::Way};

/// The names of the ledger's columns.
pub(super) struct Columns {
    pub(super) key: String,
    pub(super) client: String,
    pub(super) at: String,
}

/// What is kept of a provider's row.
struct Row {
    line: u64,
    says: Says,
    /// Whether the row is within the compared period.
    in_time: bool,
    met: bool,
}

impl Row {
    fn executed(&self) -> bool {
        self.says == Says::Complete(2)
    }
}

/// The compared fields of our record.
pub(super) struct Ours {
    pub(super) key: String,
    /// The names under which the provider may know the key, including the key itself.
    pub(super) names: Vec<String>,
    pub(super) client: String,
    pub(super) state: String,
    /// The first digit of the stored answer's status.
    pub(super) hundred: Option<u16>,
    /// Whether the record is within the compared period.
    pub(super) in_time: bool,
}

impl Ours {
    fn executed(&self) -> bool {
        self.state == "completed" && self.hundred == Some(2)
    }
}

/// A difference between the two ledgers.
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
    /// The provider has the key and we do not.
    MissingHere,
    /// We have the key and the provider does not.
    MissingThere,
    /// Both have the key, with different outcomes.
    Differs,
    /// The provider has the key more than once.
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

/// A comparison in progress.
pub(super) struct Comparison {
    rows: HashMap<(String, String), Row>,
    /// The clients named in the rows of each key, if the ledger has a column for them.
    clients: Option<HashMap<String, Vec<String>>>,
    /// Whether no two clients have equal keys at the provider.
    keys_unique: bool,
    until: Option<SystemTime>,
    found: Vec<Difference>,
    read: u64,
    unclear: u64,
    walked: u64,
}

/// How much was compared.
pub(super) struct Counts {
    /// The provider's rows.
    pub(super) rows: u64,
    /// The rows that no rule interprets.
    pub(super) unclear: u64,
    /// Our records.
    pub(super) records: u64,
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
        if let Some(why) = rules.blind_to(&header) {
            bail!("{why}");
        }
        let (client_at, time_at) = (place(&columns.client), place(&columns.at));
        let mut this = Self {
            rows: HashMap::new(),
            clients: client_at.map(|_| HashMap::new()),
            keys_unique: rules.keys_unique,
            until,
            found: Vec::new(),
            read: 0,
            unclear: 0,
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
                    let at = moment::of_a_ledger(text)
                        .with_context(|| format!("line {line}: `{text}` is not a time"))?;
                    at >= since && until.is_none_or(|until| at <= until)
                }
            };
            this.read += 1;
            let says = rules.judge(&header, &cells);
            this.unclear += u64::from(says == Says::Nothing);
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
        match self.rows.get(&name) {
            Some(before) if before.executed() && row.executed() && row.in_time => {
                let detail = format!("the provider has it in line {} as well", before.line);
                self.note(What::Twice, &name.0, &name.1, Some(row.line), detail);
            }
            // The last row counts, unless it revokes an execution.
            Some(before) if before.executed() => {}
            _ => {
                let (key, client) = &name;
                if let Some(clients) = &mut self.clients {
                    let known = clients.entry(key.clone()).or_default();
                    if !known.contains(client) {
                        known.push(client.clone());
                    }
                }
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

    /// Compares our record, which is from the compared period or earlier.
    ///
    /// # Errors
    /// When nothing says which client's row is meant.
    pub(super) fn meet(&mut self, ours: &Ours) -> anyhow::Result<()> {
        if self.clients.is_none() && !ours.client.is_empty() && !self.keys_unique {
            bail!(Usage::new(
                "clients have keys of their own, and the ledger does not say whose a row is: name its \
                 column with --client-column, or say `provider_keys_unique: true` if no two can be equal"
            ));
        }
        self.walked += u64::from(ours.in_time);
        let names = self.rows_of(ours);
        let mut found = false;
        for name in &names {
            found |= self.meet_row(name, ours);
        }
        if !found && ours.executed() && ours.in_time {
            let detail = "completed here, and the provider does not have it".to_owned();
            self.note(What::MissingThere, &ours.key, &ours.client, None, detail);
        }
        // Whichever client and spelling of the key they name: each row is an execution of this key.
        let mut executions: Vec<(u64, bool)> = names
            .iter()
            .filter_map(|name| self.rows.get(name))
            .filter(|row| row.executed())
            .map(|row| (row.line, row.in_time))
            .collect();
        executions.sort_unstable();
        let Some((first, again)) = executions.split_first() else {
            return Ok(());
        };
        for (line, _) in again.iter().filter(|(_, in_time)| *in_time) {
            let detail = format!("the provider has it in line {} as well", first.0);
            self.note(What::Twice, &ours.key, &ours.client, Some(*line), detail);
        }
        Ok(())
    }

    /// The names and clients under which the ledger may have a record. If all clients share their keys, the
    /// clients are those that the ledger names.
    fn rows_of(&self, ours: &Ours) -> Vec<(String, String)> {
        let clients_of = |name: &String| match &self.clients {
            None => vec![String::new()],
            Some(_) if !ours.client.is_empty() => vec![ours.client.clone()],
            Some(clients) => clients.get(name).cloned().unwrap_or_default(),
        };
        let mut rows = Vec::new();
        for name in &ours.names {
            let clients = clients_of(name).into_iter();
            rows.extend(clients.map(|client| (name.clone(), client)));
        }
        rows
    }

    /// Compares a row with a record, if the row exists.
    fn meet_row(&mut self, name: &(String, String), ours: &Ours) -> bool {
        let Some(row) = self.rows.get_mut(name) else {
            return false;
        };
        row.met = true;
        let (line, says) = (row.line, row.says);
        let agrees = match says {
            Says::Complete(hundred) => match ours.state.as_str() {
                "completed" => ours.hundred == Some(hundred),
                // Its answer was removed, so there is nothing to compare.
                "expired" => true,
                _ => false,
            },
            Says::NotExecuted => !ours.executed(),
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
        true
    }

    /// Whether a record of this time is within the compared period.
    pub(super) fn is_before_the_end(&self, at: SystemTime) -> bool {
        self.until.is_none_or(|until| at <= until)
    }

    /// All differences. Rows without a match are looked up one by one: a record may be older than its row.
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
            // A record that all clients share matches all rows of its key.
            let name = (key.clone(), client.clone());
            if self.rows.get(&name).is_some_and(|row| row.met) {
                continue;
            }
            match ours::one(way, route, &key, &client).await? {
                Some(ours) if self.rows_of(&ours).contains(&name) => self.meet(&ours)?,
                _ => {
                    let line = self.rows.get(&name).map(|row| row.line);
                    let detail = "the provider has it, and there is no record here".to_owned();
                    self.note(What::MissingHere, &key, &client, line, detail);
                }
            }
        }
        let mut found = std::mem::take(&mut self.found);
        found.sort();
        Ok(found)
    }

    /// How much was compared.
    pub(super) fn counts(&self) -> Counts {
        Counts {
            rows: self.read,
            unclear: self.unclear,
            records: self.walked,
        }
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
        // Control characters, which could manipulate a terminal, are replaced.
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
