//! What the audit found, for people and for programs.

use std::fmt::Write as _;

use comfy_table::Table;
use serde_json::{Value, json};

use super::{
    flow::{Flow, State},
    judge::{Judged, Verdict},
};
use crate::table::prose;

/// All operations and flows.
pub(super) struct Report<'a> {
    pub(super) operations: &'a [Judged],
    pub(super) flows: &'a [Flow],
    /// Whether a configuration was given.
    pub(super) configured: bool,
}

impl Report<'_> {
    pub(super) fn holes(&self) -> usize {
        self.operations.iter().filter(|one| one.is_hole()).count()
    }

    /// The report for programs.
    pub(super) fn json(&self) -> String {
        let operations: Vec<Value> = self.operations.iter().map(operation).collect();
        let flows: Vec<Value> = self.flows.iter().map(|flow| self.flow(flow)).collect();
        let document = json!({
            "operations": operations,
            "flows": flows,
            "holes": self.holes(),
        });
        format!("{document:#}")
    }

    fn flow(&self, flow: &Flow) -> Value {
        let names = |index: &usize| name(&self.operations[*index]);
        let steps: Vec<String> = flow.steps.iter().map(names).collect();
        let holes = flow
            .steps
            .iter()
            .filter(|index| self.operations[**index].is_hole());
        json!({
            "name": flow.name,
            "by": flow.source.name(),
            "state": flow.state.name(),
            "steps": steps,
            "holes": holes.map(names).collect::<Vec<_>>(),
        })
    }

    /// The report for people.
    pub(super) fn text(&self) -> String {
        if self.operations.is_empty() {
            return "The document has no operation that changes anything.\n".to_owned();
        }
        let mut text = format!("{}\n", self.table());
        for flow in self.flows.iter().filter(|flow| flow.state != State::Whole) {
            self.broken_flow(&mut text, flow);
        }
        let untold = self
            .operations
            .iter()
            .filter(|one| self.configured && one.is_protected() && one.declared != Some(true));
        // Writing to a String does not fail.
        match untold.count() {
            0 => {}
            count => {
                let _ = writeln!(
                    text,
                    "\n{count} protected operations do not declare the header as required: clients \
                     that are made from the document will be refused."
                );
            }
        }
        let (all, holes) = (self.operations.len(), self.holes());
        let _ = match holes {
            0 => writeln!(text, "\n{all} operations that change something, no hole."),
            holes => writeln!(
                text,
                "\n{holes} of {all} operations that change something are not safe to retry."
            ),
        };
        text
    }

    fn table(&self) -> Table {
        let mut table = prose(&["operation", "route", "key", "declared", "verdict"], None);
        for one in self.operations {
            let routes = match (self.configured, one.routes.as_slice()) {
                (false, _) => String::new(),
                (true, []) => "none".to_owned(),
                (true, routes) => routes.join(", "),
            };
            let declared = match one.declared {
                Some(true) => "required",
                Some(false) => "optional",
                None => "no",
            };
            let verdict = match &one.verdict {
                Verdict::Protected => "protected".to_owned(),
                Verdict::Idempotent => "idempotent by its method".to_owned(),
                Verdict::Exempt(reason) => format!("exempt: {reason}"),
                Verdict::Hole(advice) => format!("HOLE: {advice}"),
            };
            let keys = one.keys.name().to_owned();
            table.add_row([name(one), routes, keys, declared.to_owned(), verdict]);
        }
        table
    }

    fn broken_flow(&self, text: &mut String, flow: &Flow) {
        let words = match flow.state {
            State::Broken => "some steps are protected, others are not; a retry repeats those",
            State::Open | State::Whole => "no step is protected",
        };
        let source = flow.source.name();
        let _ = writeln!(text, "\nFlow {} (by {source}): {words}.", flow.name);
        for index in &flow.steps {
            let one = &self.operations[*index];
            let sign = if one.is_hole() { "!" } else { " " };
            let _ = writeln!(text, "  {sign} {}  {}", name(one), one.verdict.name());
        }
    }
}

fn name(one: &Judged) -> String {
    format!("{} {}", one.operation.method, one.operation.path)
}

fn operation(one: &Judged) -> Value {
    let why = match &one.verdict {
        Verdict::Exempt(reason) => Some(reason),
        Verdict::Hole(advice) => Some(advice),
        Verdict::Protected | Verdict::Idempotent => None,
    };
    let declared = one
        .declared
        .map(|required| if required { "required" } else { "optional" });
    json!({
        "method": one.operation.method.as_str(),
        "path": one.operation.path,
        "operation_id": one.operation.id,
        "routes": one.routes,
        "keys": one.keys.name(),
        "declared": declared,
        "verdict": one.verdict.name(),
        "why": why,
    })
}
