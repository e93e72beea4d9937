//! Flows: operations that a client performs one after another.
//!
//! An operation names its flow (`x-onlyonce-flow`); otherwise its tags do, otherwise the first segment of its
//! path.

use super::judge::{Judged, Verdict};

/// How a flow was determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Stated,
    Tag,
    Path,
}

impl Source {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Stated => "x-onlyonce-flow",
            Self::Tag => "tag",
            Self::Path => "path",
        }
    }
}

/// How safe a flow is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Every step can be retried safely.
    Whole,
    /// Some steps are protected and others are not: a retry of the flow repeats part of it.
    Broken,
    /// No step is protected.
    Open,
}

impl State {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Broken => "broken",
            Self::Open => "open",
        }
    }
}

/// Several steps that belong together.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    pub(super) name: String,
    pub(super) source: Source,
    /// Indexes into the list of operations.
    pub(super) steps: Vec<usize>,
    pub(super) state: State,
}

/// The flows of more than one step, in the order of the document.
pub(super) fn flows(judged: &[Judged]) -> Vec<Flow> {
    let mut flows: Vec<Flow> = Vec::new();
    for (index, one) in judged.iter().enumerate() {
        let operation = &one.operation;
        let (names, source) = if !operation.flows.is_empty() {
            (operation.flows.clone(), Source::Stated)
        } else if !operation.tags.is_empty() {
            (operation.tags.clone(), Source::Tag)
        } else {
            (vec![operation.family.clone()], Source::Path)
        };
        for name in names {
            let known = flows
                .iter_mut()
                .find(|flow| flow.name == name && flow.source == source);
            match known {
                Some(flow) => flow.steps.push(index),
                None => flows.push(Flow {
                    name,
                    source,
                    steps: vec![index],
                    state: State::Whole,
                }),
            }
        }
    }
    flows.retain(|flow| flow.steps.len() > 1);
    for flow in &mut flows {
        flow.state = state(judged, &flow.steps);
    }
    flows
}

fn state(judged: &[Judged], steps: &[usize]) -> State {
    let holes = steps.iter().filter(|index| judged[**index].is_hole());
    let safe = |verdict: &Verdict| matches!(verdict, Verdict::Protected | Verdict::Exempt(_));
    match holes.count() {
        0 => State::Whole,
        _ if steps.iter().any(|index| safe(&judged[*index].verdict)) => State::Broken,
        _ => State::Open,
    }
}
