//! Why a process died, in one sentence and in parts, from the facts of its report: registers, the code around the program counter, the
//! fault's address, what is mapped there.
//!
//! [`explain`] computes it, [`explain_report`] puts it into the report, from where text, JSON and events have it. All of it is computed at the next
//! launch or at the desk, so that an old report gains when the analysis does.
//!
//! # What it claims
//! A wrong claim is worse than none: what is not in accordance with the recorded facts is left out. An operand is named only if the address that
//! it gives is the one that the processor said, and a register only if no other one can be the bad one.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod headline;

pub use coroner_report::model::{
    BadOperand, Certainty, CodeCheck, CodeResult, Explanation, FaultKind, Instruction, MemoryAccess, Place, Recursion,
};

use coroner_report::Report;

/// Why the process of `report` died. `None` if the report doesn't say what happened: it was cut before.
pub fn explain(report: &Report) -> Option<Explanation> {
    let crash = report.crash.as_ref()?;
    let mut explanation = Explanation { kind: headline::said_kind(report, crash), ..Explanation::default() };
    explanation.headline = headline::of(report, crash, &explanation);
    Some(explanation)
}

/// Puts the explanation of the report into it.
pub fn explain_report(report: &mut Report) {
    report.explanation = explain(report);
}
