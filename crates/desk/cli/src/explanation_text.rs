//! Renders the explanation of a crash as text.

use std::fmt;

use std::time::Duration;

use coroner::Report;
use coroner_explain::{Certainty, Explanation, FaultKind, LockWait, ProfileTree};
use coroner_report::text::{Sink, Style};

/// Width of field names, as in a report's text.
const LABEL_WIDTH: usize = 14;
/// Maximum lines of a profile, minimum percentage of a function, and maximum indentation.
const MAX_PROFILE_LINES: usize = 60;
const MIN_PERCENT: f64 = 1.0;
const MAX_COLUMN: usize = 40;
/// Maximum number of waits that are listed.
const MAX_WAITS: usize = 20;

/// Writes the headline, followed by its evidence.
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
        sink.piece(Style::Label, &format!("{:<LABEL_WIDTH$}", format!("{label}:")))?;
        sink.piece(Style::Plain, &format!(" {value}\n"))?;
    }
    sink.piece(Style::Plain, "\n")
}

/// Writes a hang's profile: the functions in which the hung thread spent its time.
///
/// Each function is below its caller. A function is indented only if its caller calls several
/// functions.
pub(crate) fn write_profile(report: &Report, sink: &mut dyn Sink) -> fmt::Result {
    let Some((profile, tree)) = report.profile.as_ref().zip(ProfileTree::from_report(report)) else { return Ok(()) };
    let time = Duration::from_nanos(tree.weight_ns);
    sink.piece(Style::Heading, "Profile of the hang")?;
    let failed = if profile.failed > 0 { format!(", {} more failed", profile.failed) } else { String::new() };
    sink.piece(Style::Faint, &format!(" ({} samples, {time:.1?}{failed})\n", profile.samples))?;
    let called = tree.called_by();
    let is_shown = |number: &&usize| tree.percent(tree.nodes[**number].weight_ns) >= MIN_PERCENT;
    let shown = |caller: Option<usize>| called.get(&caller).into_iter().flatten().filter(is_shown).copied();
    // The functions that lead to the app's own code are the same in every sample.
    let mut top = None;
    let mut left_out = 0;
    while let [only] = shown(top).collect::<Vec<_>>()[..]
        && !tree.nodes[only].in_app
        && tree.nodes.iter().any(|node| node.in_app)
        && shown(Some(only)).next().is_some()
    {
        top = Some(only);
        left_out += 1;
    }
    if left_out > 0 {
        sink.piece(Style::Faint, &format!("          … {left_out} runtime functions\n"))?;
    }
    let mut waiting: Vec<(usize, usize)> = shown(top).map(|number| (number, 0)).collect();
    waiting.reverse();
    let mut lines = 0;
    while let Some((number, column)) = waiting.pop() {
        if lines == MAX_PROFILE_LINES {
            sink.piece(Style::Faint, "          …\n")?;
            break;
        }
        lines += 1;
        let node = &tree.nodes[number];
        sink.piece(Style::Plain, &format!("{:>7.1} % {:column$}", tree.percent(node.weight_ns), ""))?;
        sink.piece(if node.in_app { Style::Function } else { Style::Plain }, &node.name)?;
        let doing = node.doing.as_ref().filter(|(what, _)| !what.is_empty());
        if let Some((what, weight)) = doing.filter(|(_, weight)| tree.percent(*weight) >= MIN_PERCENT) {
            sink.piece(Style::Faint, &format!(", {:.1} % {what}", tree.percent(*weight)))?;
        }
        sink.piece(Style::Plain, "\n")?;
        let next: Vec<usize> = shown(Some(number)).collect();
        let column = if next.len() > 1 { (column + 2).min(MAX_COLUMN) } else { column };
        waiting.extend(next.into_iter().rev().map(|number| (number, column)));
    }
    sink.piece(Style::Plain, "\n")
}

/// Returns the evidence for a headline, by name. Empty if the headline is sufficient.
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
        if let Some((register, value)) = named.filter(|(register, _)| **register == text) {
            text = format!("{register} is {value}");
        } else if let Some((register, value)) = named {
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
    if let Some(variable) = &explanation.variable {
        let accessed =
            variable.accessed.as_ref().map_or_else(String::new, |accessed| format!(", accessed: {accessed}"));
        fields.push(("Variable", format!("{} was {}{accessed}", variable.name, variable.value)));
    }
    if let Some(recursion) = &explanation.recursion {
        fields.push(("Recursion", recursion.functions.join(", ")));
    }
    fields.extend(explanation.facts.iter().map(|fact| ("Fact", fact.clone())));
    // Waits of deadlocked threads or with a known owner; for a hang, all waits for a lock.
    let is_locked = |tid: u64| explanation.deadlocks.iter().any(|cycle| cycle.contains(&tid));
    let shown = |wait: &&LockWait| {
        is_locked(wait.tid) || wait.owner.is_some() || (explanation.kind == FaultKind::Hang && wait.kind.is_lock())
    };
    fields.extend(explanation.waits.iter().filter(shown).take(MAX_WAITS).map(|wait| ("Waits", wait.to_string())));
    if !fields.is_empty() || explanation.certainty != Certainty::Certain {
        let kind = explanation.kind.words();
        let cause = match (explanation.kind, explanation.certainty) {
            (FaultKind::Unknown, _) => "not determined".to_owned(),
            (_, Certainty::Certain) => format!("{kind}, certain"),
            (_, Certainty::Possible) => format!("{kind}, likely; other causes fit as well"),
            _ => format!("{kind}, not certain"),
        };
        fields.insert(0, ("Cause", cause));
    }
    fields
}
