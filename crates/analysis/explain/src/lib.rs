//! Explains why a process crashed, in one sentence and in details, from its report.
//!
//! The evidence is the crashed thread's registers, the signal, the address, the images, and the
//! code at the program counter, from the report or the image's file.
//!
//! [`explain`] decodes the instruction (x86_64, arm64), finds the bad operand and the register that
//! it came from, and determines the kind of fault. All of this runs at analysis time, so that old
//! reports benefit from improvements.
//!
//! # Certainty
//! A wrong claim is worse than none. An operand is only named if its address, computed from the
//! register values, is the one reported by the processor, and if the instruction performs the
//! reported access (a read, a write). If either of two registers may be the bad one, neither is
//! named. If the report doesn't contain the cause, the result is [`FaultKind::Unknown`].
//! `docs/explanations.md` lists the evidence for each kind.
//!
//! # Example
//! ```no_run
//! # use coroner_report::Report;
//! # use coroner_symbols::{Options, Symbolizer};
//! # fn show(report: &Report) {
//! let mut symbolizer = Symbolizer::new(Options::default());
//! let code = coroner_explain::ImageFiles::for_report(report, &mut symbolizer);
//! println!("{}", coroner_explain::explain(report, &code).headline);
//! # }
//! ```
#![forbid(unsafe_code)]
#![deny(missing_docs)]
// The types for decoded instructions exist without the feature as well.
#![cfg_attr(not(feature = "decode"), allow(dead_code))]

#[cfg(feature = "decode")]
mod aarch64;
#[cfg(feature = "decode")]
mod aarch64_step;
mod architecture;
mod bad_jump;
mod bad_operand;
mod before_handler;
mod bit_flip;
mod code_change;
mod code_source;
mod decode;
mod fault;
mod grouped_digits;
mod headline;
mod instruction;
mod last_set;
mod memory_map;
mod notice;
mod pointer_authentication;
mod pointer_hints;
mod poison_pattern;
mod profile;
mod program_end;
mod raised_again;
mod recursion;
mod shadow_stack;
mod stack_frame;
mod step;
mod trap;
mod value_origin;
mod variable;
mod waits;
#[cfg(feature = "decode")]
mod x86_64;
#[cfg(feature = "decode")]
mod x86_64_step;
mod zombie;

pub use code_source::{Code, CodeSource, ImageFiles, NoCode};
pub use coroner_report::model::{
    BadOperand, BitFlip, Certainty, CodeChange, CodeChangeKind, Explanation, FaultKind, Index, Instruction, LastSet,
    LockWait, MemoryAccess, OverwrittenReturn, OwnerIs, Recursion, SourceValue, WaitKind,
};
pub use profile::{ProfileFunction, ProfileTree};

use code_source::RanCode;
use coroner_report::Report;

/// Explains why the process in `report` crashed, using `code` to read its instructions.
pub fn explain(report: &Report, code: &dyn CodeSource) -> Explanation {
    if let Some((before, fact)) = raised_again::find_fault(report, &RanCode { report, otherwise: code }) {
        let mut explanation = explain_crash(&before, code);
        if raised_again::is_proven(&explanation) {
            explanation.facts.push(fact.to_owned());
            return explanation;
        }
    }
    explain_crash(report, code)
}

fn explain_crash(report: &Report, code: &dyn CodeSource) -> Explanation {
    let Some(crash) = &report.crash else {
        return Explanation {
            headline: "cause not determined: the report ends before the crash record".to_owned(),
            ..Explanation::default()
        };
    };
    let ran = RanCode { report, otherwise: code };
    let mut explanation = program_end::explain(report, crash).unwrap_or_else(|| fault::explain(report, crash, &ran));
    pointer_hints::add(report, &mut explanation);
    explanation.code_change = code_change::compare(report, code);
    explanation.bit_flips = bit_flip::find_candidates(report, &explanation);
    explanation.facts.extend(bit_flip::describe(&explanation));
    explanation.facts.extend(pointer_authentication::describe(report, &explanation));
    explanation.facts.extend(explanation.code_change.as_ref().map(code_change::describe));
    value_origin::add(report, &ran, &mut explanation);
    let register = explanation.operand.as_ref().and_then(|operand| operand.register.as_deref());
    explanation.facts.extend(
        explanation
            .last_set
            .as_ref()
            .zip(register)
            .map(|(set, register)| value_origin::describe_last_set(set, register)),
    );
    zombie::add_facts(report, &mut explanation);
    waits::add(report, &mut explanation);
    explanation.spent = profile::describe_time(report);
    let is_alone = bad_jump::is_link_register_stale(report, &ran);
    explanation.function = headline::crashed_function(report, &explanation, is_alone);
    explanation.headline = headline::summarize(report, crash, &explanation, is_alone);
    explanation
}
