//! The figures as text: for pipes, for `--once`, and for terminals without the full screen.

use std::fmt::Write;

use comfy_table::{CellAlignment, Table, presets};
use serde_json::Value;

use super::figures::{DECISIONS, Figures};

/// The figures as lines of text.
pub(super) fn text(figures: &Figures) -> String {
    let mut out = format!("{}\n", figures.headline());
    if let Some(failure) = &figures.failure {
        // Writing to a String does not fail.
        let _ = writeln!(out, "{failure}");
    }
    if !figures.rates.is_empty() {
        let rates = DECISIONS.iter().zip(figures.rate());
        let rates: Vec<String> = rates
            .map(|(name, rate)| format!("{name} {rate:.1}/s"))
            .collect();
        let _ = writeln!(out, "{}", rates.join("  "));
    }
    let (executing, waiting) = (figures.number("/executing"), figures.number("/waiting"));
    let _ = writeln!(out, "executing {executing}  waiting {waiting}");
    if let Some(shadow) = figures.shadow() {
        let _ = writeln!(out, "{shadow}");
    }
    out.push('\n');
    let tables = [
        routes(figures),
        keys(figures),
        latency(figures),
        workers(figures),
    ];
    for table in tables {
        if table.row_iter().next().is_some() {
            let _ = writeln!(out, "{table}\n");
        }
    }
    out
}

fn table<'a>(headers: impl IntoIterator<Item = &'a str>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(headers);
    table
}

fn right(table: &mut Table, columns: std::ops::Range<usize>) {
    for column in columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// A value as the text of a cell.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn routes(figures: &Figures) -> Table {
    let mut rows = table(["ROUTE"].into_iter().chain(DECISIONS));
    for route in figures.list("routes") {
        let counts = DECISIONS.iter().map(|name| shown(&route["decided"][*name]));
        rows.add_row(std::iter::once(shown(&route["id"])).chain(counts));
    }
    right(&mut rows, 1..6);
    rows
}

fn keys(figures: &Figures) -> Table {
    let mut rows = table(["KEYS", "COUNT"]);
    for (state, count) in figures.now["keys"].as_object().into_iter().flatten() {
        rows.add_row([state.clone(), shown(count)]);
    }
    right(&mut rows, 1..2);
    rows
}

fn latency(figures: &Figures) -> Table {
    let mut rows = table(["LATENCY", "P50 ms", "P99 ms"]);
    for (stage, times) in figures.now["latency"].as_object().into_iter().flatten() {
        rows.add_row([
            stage.clone(),
            shown(&times["p50_ms"]),
            shown(&times["p99_ms"]),
        ]);
    }
    right(&mut rows, 1..3);
    rows
}

fn workers(figures: &Figures) -> Table {
    let mut rows = table(["LOOP", "LAST RUN", "TOOK ms", "CHANGED"]);
    for worker in figures.list("workers") {
        let fields = ["name", "last_run_at", "took_ms", "changed"];
        rows.add_row(fields.map(|field| shown(&worker[field])));
    }
    right(&mut rows, 2..4);
    rows
}
