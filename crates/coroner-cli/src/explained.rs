//! Why it crashed, as text.

use std::fmt;

use coroner_explain::{Certainty, Explanation, FaultKind, LockWait};
use coroner_report::text::{Sink, Style};

/// Width of the names of fields, as in a report's text.
const LABEL: usize = 14;
/// Most waits that are listed.
const WAITS: usize = 20;

/// Writes the headline, and below it what it rests on.
pub(crate) fn write(explanation: &Explanation, sink: &mut dyn Sink) -> fmt::Result {
    sink.piece(Style::Alarm, &explanation.headline)?;
    sink.piece(Style::Plain, "\n")?;
    let fields = fields(explanation);
    if !fields.is_empty() {
        sink.piece(Style::Plain, "\n")?;
        sink.piece(Style::Heading, "Why")?;
        sink.piece(Style::Plain, "\n")?;
    }
    for (label, value) in fields {
        sink.piece(Style::Label, &format!("{:<LABEL$}", format!("{label}:")))?;
        sink.piece(Style::Plain, &format!(" {value}\n"))?;
    }
    sink.piece(Style::Plain, "\n")
}

/// What a headline rests on, by name. Empty where it says all.
pub(crate) fn fields(explanation: &Explanation) -> Vec<(&'static str, String)> {
    let mut fields = Vec::new();
    if let Some(instruction) = &explanation.instruction {
        fields.push(("Instruction", format!("{} at {}", instruction.text, instruction.address)));
    }
    if let Some(call) = &explanation.call {
        fields.push(("Called by", format!("{} at {}", call.text, call.address)));
    }
    if let Some(operand) = &explanation.operand {
        let mut text = operand.text.clone();
        let named = operand.register.as_ref().zip(operand.value);
        if let Some((register, value)) = named {
            text.push_str(&format!(", {register} is {value}"));
        } else if let Some(value) = operand.value {
            text.push_str(&format!(", which is {value}"));
        }
        if let Some(index) = &operand.index {
            text.push_str(&format!(", {} is {}", index.register, index.value));
        }
        fields.push(("Operand", text));
        fields.extend(operand.pattern.clone().map(|pattern| ("Pattern", pattern)));
    }
    if let Some(recursion) = &explanation.recursion {
        fields.push(("Round", recursion.functions.join(", ")));
    }
    fields.extend(explanation.facts.iter().map(|fact| ("Fact", fact.clone())));
    // Those of which an owner is known; where something is wrong, all that wait for a lock.
    let is_locked = |tid: u64| explanation.deadlocks.iter().any(|cycle| cycle.contains(&tid));
    let shown = |wait: &&LockWait| {
        is_locked(wait.tid) || wait.owner.is_some() || (explanation.kind == FaultKind::Hang && wait.kind.is_lock())
    };
    fields.extend(explanation.waits.iter().filter(shown).take(WAITS).map(|wait| ("Waits", wait.to_string())));
    if !fields.is_empty() || explanation.certainty != Certainty::Certain {
        let how = match explanation.certainty {
            Certainty::Certain => "certain",
            Certainty::Possible => "possible: what the report says agrees with other causes, too",
            _ => "unknown: the report does not say enough",
        };
        fields.insert(0, ("Kind", format!("{}, {how}", explanation.kind.words())));
    }
    fields
}
