//! The headline: a one-sentence summary of an explanation.

use coroner_report::Report;
use coroner_report::model::{Crash, Frame, InApp, InAppRules, PURE_VIRTUAL_CALL};
use coroner_report::text::short_function;
use coroner_report::wire::{Access, FoundBy, Monitor, WalkEnd};

use crate::grouped_digits::grouped;
use crate::{memory_map, shadow_stack, zombie};
use coroner_report::model::{BadOperand, Explanation, MemoryAccess, Recursion};
use coroner_report::model::{CodeChangeKind, FaultKind};

/// Maximum length of a headline, in characters.
const MAX_CHARS: usize = 400;
/// Maximum length of a function's name, in characters.
const MAX_NAME: usize = 100;
/// Maximum number of frames searched for a caller with a line.
const MAX_CALLERS: usize = 24;

/// Returns the headline for an explanation whose other parts are complete. `is_alone`: only the
/// crashed thread's innermost frame is certain.
pub(crate) fn summarize(report: &Report, crash: &Crash, explanation: &Explanation, is_alone: bool) -> String {
    let what = match explanation.kind {
        FaultKind::Abort
        | FaultKind::Panic
        | FaultKind::Exception
        | FaultKind::SystemCall
        | FaultKind::SentSignal
        | FaultKind::Hang
        | FaultKind::Requested
        | FaultKind::Unknown => describe_end(report, crash, explanation.kind),
        _ => match zombie::describe_use(report, explanation) {
            Some(claim) => format!("{claim}: {}", describe_fault(report, explanation)),
            None => describe_fault(report, explanation),
        },
    };
    let place = describe_location(report, crash, explanation, is_alone).unwrap_or_default();
    let mut sentence = first_line(&what, MAX_CHARS.saturating_sub(place.chars().count()).max(MAX_NAME));
    sentence.push_str(&place);
    if let Some(meaning) = meaning_of_instruction(explanation) {
        sentence.push_str(&format!(": {meaning}"));
    }
    // For a thread that received a signal while waiting, or that doesn't respond.
    let waits =
        matches!(explanation.kind, FaultKind::Hang | FaultKind::SentSignal | FaultKind::Abort | FaultKind::Requested);
    if let Some(waits_for) = explanation.waits_for.as_ref().filter(|_| waits) {
        sentence.push_str(&format!("; {waits_for}"));
    }
    if let Some(spent) = &explanation.spent {
        sentence.push_str(&format!("; {spent}"));
    }
    if is_flipped_instruction(explanation) {
        sentence.push_str("; its code differs from the file in one bit");
    } else if let Some(at) = flipped_code(explanation) {
        let image = report.image_at(at).map_or_else(String::new, |image| {
            format!(" ({} + {:#x})", image.name(), at.0.wrapping_sub(image.load_address.0))
        });
        sentence.push_str(&format!("; the code at {at}{image} differs from the file in one bit"));
    }
    // Function and file names come from the report: with line breaks they could imitate other parts
    // of it.
    let sentence = sentence.replace(char::is_control, " ");
    let mut letters = sentence.chars();
    match letters.next() {
        // Type names keep their case: `std::runtime_error: …`, or for a handled error
        // `core::num::error::ParseIntError: …`.
        Some(first) if !begins_with_type(report, crash, explanation.kind) => {
            std::iter::once(first.to_ascii_uppercase()).chain(letters).collect()
        }
        _ => sentence,
    }
}

/// Whether the sentence starts with a type's name.
fn begins_with_type(report: &Report, crash: &Crash, kind: FaultKind) -> bool {
    match kind {
        FaultKind::Exception => !report.is_pure_virtual_call(),
        _ => crash.monitor == Monitor::USER && !report.exceptions.is_empty(),
    }
}

/// Returns why an instruction terminates the program, for example a failed UBSan check.
fn meaning_of_instruction(explanation: &Explanation) -> Option<&str> {
    let is_by_instruction = matches!(
        explanation.kind,
        FaultKind::Trap | FaultKind::Breakpoint | FaultKind::ControlFlow | FaultKind::IllegalInstruction
    );
    explanation.facts.first().filter(|_| is_by_instruction).map(String::as_str)
}

/// Whether one bit of the instruction itself was changed.
fn is_flipped_instruction(explanation: &Explanation) -> bool {
    /// Length of the longest instruction, in bytes.
    const MAX_INSTRUCTION: u64 = 15;
    let instruction = explanation.instruction.as_ref();
    let change = flipped_code(explanation);
    change.zip(instruction).is_some_and(|(change, at)| change.0.wrapping_sub(at.address.0) < MAX_INSTRUCTION)
}

/// Returns where one bit of the crashed thread's code was changed.
fn flipped_code(explanation: &Explanation) -> Option<coroner_report::model::Address> {
    let change = explanation.code_change.as_ref().filter(|change| change.kind == CodeChangeKind::OneBit);
    change.map(|change| change.address)
}

/// Returns the message from the program or the system.
fn describe_end(report: &Report, crash: &Crash, kind: FaultKind) -> String {
    let exception = report.exceptions.first();
    let signal = crash.signal.as_ref();
    match (kind, crash.message.as_deref().or_else(|| report.abort_message())) {
        (FaultKind::Abort, Some(message)) => return format!("abort: {}", message.trim_end_matches('.')),
        (FaultKind::Abort, None) if report.is_pure_virtual_call() => {
            return format!("abort: {PURE_VIRTUAL_CALL}");
        }
        (FaultKind::Abort, None) if is_out_of_memory(report) => {
            return "abort: memory allocation failed (`handle_alloc_error`)".to_owned();
        }
        (FaultKind::Abort, None)
            if signal.is_some_and(|signal| signal.name == Some("STATUS_INVALID_CRUNTIME_PARAMETER")) =>
        {
            return "abort: invalid parameter passed to a C runtime function".to_owned();
        }
        (FaultKind::Abort, None) => {
            let message = report.last_message_on_stderr();
            let message = message.map(|message| format!(": {} (from stderr)", message.trim_end_matches('.')));
            return format!("abort{}", message.unwrap_or_default());
        }
        _ => {}
    }
    if kind == FaultKind::Exception && report.is_pure_virtual_call() {
        return PURE_VIRTUAL_CALL.to_owned();
    }
    let name = exception.map_or_else(|| crash.kind(), coroner_report::model::Exception::kind);
    if let (FaultKind::SentSignal, Some(pid)) = (kind, signal.and_then(|signal| signal.sender_pid)) {
        let watchdog = report.run.as_ref().and_then(|run| run.app.watchdog_us);
        let is_abort = signal.is_some_and(|signal| signal.name == Some("SIGABRT"));
        let by = match pid {
            _ if pid == report.header.pid => "the process itself".to_owned(),
            0 => "a process in another PID namespace".to_owned(),
            // Also the sender for commands such as `systemctl kill`.
            1 => match watchdog.filter(|_| is_abort) {
                Some(us) => {
                    let seconds = format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
                    let seconds = seconds.trim_end_matches('0').trim_end_matches('.');
                    format!(
                        "process 1 (the service manager), as its watchdog does after {seconds} s without a keep-alive"
                    )
                }
                None => "process 1".to_owned(),
            },
            _ => format!("process {pid}"),
        };
        return format!("{name}, sent by {by}");
    }
    let cause = exception.and_then(|exception| exception.message.clone()).or_else(|| report.cause());
    cause.map_or(name.clone(), |cause| format!("{name}: {cause}"))
}

/// Whether Rust's standard library terminated the program because an allocation failed.
fn is_out_of_memory(report: &Report) -> bool {
    has_inner_function(report, &|name| matches!(name, "alloc::alloc::handle_alloc_error" | "std::alloc::rust_oom"))
}

/// Whether such a function is among the innermost ones of the crashed thread or of the throw.
fn has_inner_function(report: &Report, is_it: &dyn Fn(&str) -> bool) -> bool {
    const INNERMOST: usize = 16;
    let frames = report.crashed_thread().map(|thread| thread.frames.as_slice()).unwrap_or_default();
    let thrown = report.exceptions.first().map(|exception| exception.frames.as_slice()).unwrap_or_default();
    let is_named = |frame: &coroner_report::model::Frame| {
        [&frame.function, &frame.raw_function]
            .into_iter()
            .chain(frame.inlined.iter().map(|call| &call.function))
            .flatten()
            .any(|name| is_it(name))
    };
    frames.iter().take(INNERMOST).chain(thrown.iter().take(INNERMOST)).any(is_named)
}

/// Returns, for example, `` `row` was null: ``.
fn describe_variable(explanation: &Explanation) -> String {
    let Some(variable) = &explanation.variable else { return String::new() };
    match variable.value.0 {
        0 if explanation.access.is_some() => format!("`{}` was null: ", variable.name),
        0 => format!("`{}` was 0: ", variable.name),
        _ => format!("`{}` was {}: ", variable.name, variable.value),
    }
}

/// Returns, for example, `` at `row->number` ``.
fn describe_accessed_variable(explanation: &Explanation) -> String {
    let accessed = explanation.variable.as_ref().and_then(|variable| variable.accessed.as_ref());
    accessed.map_or_else(String::new, |accessed| format!(" at `{accessed}`"))
}

/// Adds an address to the name of its location.
fn after_location(within: &str, at: &str, preposition: &str) -> String {
    match at.strip_prefix(preposition) {
        Some(address) if !within.is_empty() => format!(", {address}"),
        _ => at.to_owned(),
    }
}

fn describe_fault(report: &Report, explanation: &Explanation) -> String {
    let kind = explanation.kind.words();
    let named = describe_variable(explanation);
    let operand = explanation.operand.as_ref();
    let held = operand.and_then(describe_value).map_or_else(String::new, |held| format!(" ({held})"));
    match explanation.kind {
        FaultKind::StackOverflow => match &explanation.recursion {
            Some(recursion) => {
                // The walk ended there, not the stack.
                let end = report.crashed_thread().and_then(|thread| thread.walk_end);
                let is_cut = matches!(end, Some(WalkEnd::LIMIT | WalkEnd::BUDGET));
                format!("{kind}: {}", describe_recursion(recursion, if is_cut { "at least " } else { "" }))
            }
            None => explanation
                .facts
                .first()
                .filter(|fact| fact.starts_with("a frame of"))
                .map_or_else(|| kind.to_owned(), |fact| format!("{kind}: {fact}")),
        },
        FaultKind::JumpToNull | FaultKind::JumpToNowhere | FaultKind::ExecuteOfData => {
            let by = explanation.call.as_ref().map_or_else(String::new, |call| format!(" by `{}`", call.text));
            let to = explanation.access.and_then(|access| access.address).filter(|address| address.0 != 0);
            let to = to.map_or_else(String::new, |to| format!(": {to}"));
            let is_null = explanation.kind != FaultKind::JumpToNull || to.is_empty();
            let kind = if is_null { kind } else { "call through a pointer near null" };
            let held = if named.is_empty() { named } else { format!("; {}", named.trim_end_matches(": ")) };
            format!("{kind}{to}{by}{held}")
        }
        FaultKind::BadReturn => {
            let to = explanation.access.and_then(|access| access.address).filter(|address| address.0 != 0);
            let to = to.map_or_else(|| ": null".to_owned(), |to| format!(": {to}"));
            let pattern = operand.and_then(|operand| operand.pattern.as_ref());
            let pattern = pattern.map_or_else(String::new, |pattern| format!(" ({pattern})"));
            let was = explanation.overwritten_return.filter(|overwritten| overwritten.frame == 0);
            let was =
                was.map_or_else(String::new, |was| format!(", originally {}", shadow_stack::locate(report, was.was)));
            format!("{kind}{to}{pattern}{was}")
        }
        FaultKind::Trap
        | FaultKind::Breakpoint
        | FaultKind::ControlFlow
        | FaultKind::IllegalInstruction
        | FaultKind::PrivilegedInstruction => {
            let text = explanation.instruction.as_ref().map_or_else(String::new, |found| format!(" `{}`", found.text));
            format!("{kind}{text}")
        }
        FaultKind::NullPointer => match explanation.access {
            Some(access) => {
                let offset = operand
                    .and_then(|operand| operand.register.as_ref())
                    .and(access.address)
                    .map(|address| address.0 as i64);
                let at = match offset {
                    Some(0) | None => String::new(),
                    Some(offset) if offset < 0 => format!(" at null - {:#x}", offset.unsigned_abs()),
                    Some(offset) => format!(" at null + {offset:#x}"),
                };
                let by = operand.and_then(|operand| operand.register.as_deref());
                let by = by.map_or_else(String::new, |register| format!(" ({register} is null)"));
                let within = describe_accessed_variable(explanation);
                let at = after_location(&within, &at, " at ");
                format!("{kind}: {named}{}{within}{at}{by}", describe_access(&access))
            }
            None => kind.to_owned(),
        },
        _ => match explanation.access {
            Some(access) => {
                let preposition = if access.kind == Some(Access::EXECUTE) { "to" } else { "at" };
                let at = access.address.map_or_else(String::new, |address| format!(" {preposition} {address}"));
                let file = access.address.filter(|_| explanation.kind == FaultKind::TruncatedMapping);
                let file = file.and_then(|address| report.mappings.iter().find(|mapping| mapping.contains(address)));
                let file =
                    file.and_then(memory_map::mapping_name).map_or_else(String::new, |name| format!(" ({name})"));
                let within = describe_accessed_variable(explanation);
                let at = after_location(&within, &at, " at ");
                let end = access.address.filter(|_| explanation.kind == FaultKind::Unmapped);
                let end = end.and_then(|address| memory_map::memory_that_ends_at(report, address));
                let end = end.map_or_else(String::new, |memory| format!(", just after {memory}"));
                format!("{kind}: {named}{}{within}{at}{end}{file}{held}", describe_access(&access))
            }
            None if named.is_empty() => format!("{kind}{held}"),
            None => format!("{kind}: {}{held}", named.trim_end_matches(": ")),
        },
    }
}

/// Returns, for example, `write of 4 bytes`.
fn describe_access(access: &MemoryAccess) -> String {
    let what = match access.kind {
        Some(Access::READ) => "read",
        Some(Access::WRITE) => "write",
        Some(Access::EXECUTE) => "jump",
        _ => "access",
    };
    match access.width {
        Some(1) => format!("{what} of 1 byte"),
        Some(width) => format!("{what} of {width} bytes"),
        None => what.to_owned(),
    }
}

/// Returns, for example, `rax is 0x10`.
fn describe_value(operand: &BadOperand) -> Option<String> {
    let value = operand.value?;
    let name = operand.register.as_deref().unwrap_or(&operand.text);
    let pattern = operand.pattern.as_ref().map_or_else(String::new, |pattern| format!(", {pattern}"));
    Some(format!("{name} is {value}{pattern}"))
}

/// Returns, for example, `excessive recursion in f: 24,901 calls, 336 bytes of stack each`.
///
/// Whether the recursion would have ended is not known.
fn describe_recursion(recursion: &Recursion, at_least: &str) -> String {
    let bytes = recursion.bytes.map_or_else(String::new, |bytes| format!(", {} bytes of stack each", grouped(bytes)));
    let names: Vec<String> = recursion.functions.iter().map(|name| short_function(name, MAX_NAME).into()).collect();
    let rounds = if names.len() == 1 { "calls" } else { "rounds" };
    format!("excessive recursion in {}: {at_least}{} {rounds}{bytes}", names.join(", "), grouped(recursion.rounds))
}

/// Returns the function in which the crash happened; for a jump to an address without code, its
/// caller.
pub(crate) fn crashed_function(report: &Report, explanation: &Explanation, is_alone: bool) -> Option<String> {
    let frames = certain_frames(&report.crashed_thread()?.frames, is_alone);
    if explanation.kind == FaultKind::BadReturn && is_jump_target(explanation, frames.first()?) {
        return None;
    }
    let frame = frames.get(usize::from(is_jump_target(explanation, frames.first()?)))?;
    let (name, ..) = innermost_function(frame);
    name.map(|name| short_function(name, MAX_NAME).into_owned())
}

/// Returns the frames before the first one found by a stack scan.
///
/// Addresses on the stack need not be callers.
fn certain_frames(frames: &[Frame], is_alone: bool) -> &[Frame] {
    let found = frames.iter().position(|frame| frame.found_by == FoundBy::SCAN).unwrap_or(frames.len());
    frames.get(..if is_alone { found.min(1) } else { found }).unwrap_or_default()
}

/// Whether the innermost frame is a jump's target rather than a function.
fn is_jump_target(explanation: &Explanation, first: &Frame) -> bool {
    explanation
        .access
        .is_some_and(|access| access.kind == Some(Access::EXECUTE) && access.address == Some(first.address))
}

/// Returns, for example, ` in save (notes.c:27)`.
fn describe_location(report: &Report, crash: &Crash, explanation: &Explanation, is_alone: bool) -> Option<String> {
    let thrown = report.exceptions.first().map(|exception| &exception.frames).filter(|frames| !frames.is_empty());
    let is_thrown = thrown.is_some();
    let of_thread = || report.crashed_thread().map(|thread| certain_frames(&thread.frames, is_alone));
    let frames = thrown.map(|frames| certain_frames(frames, false)).or_else(of_thread)?;
    let first = frames.first()?;
    let caller = |frames: &[Frame]| Some(format!(", called by {}", app_function(report, frames)?));
    match explanation.kind {
        FaultKind::StackOverflow if explanation.recursion.is_some() => None,
        // It is not known which function returned, and addresses found on the stack need not be
        // callers.
        FaultKind::BadReturn if is_jump_target(explanation, first) => None,
        _ if is_jump_target(explanation, first) => {
            let callers = frames.get(1..)?;
            caller(callers).or_else(|| Some(format!(", called by {}", frame_name(callers.first()?)?)))
        }
        FaultKind::Abort | FaultKind::Panic | FaultKind::Exception if crash.location.is_some() => None,
        FaultKind::Exception if is_thrown => Some(format!(", thrown by {}", app_function(report, frames)?)),
        FaultKind::SentSignal
            if report.crashed_frames().len() < report.crashed_thread().map_or(0, |thread| thread.frames.len()) =>
        {
            let interrupted = certain_frames(report.crashed_frames(), false);
            Some(format!(", in a handler that interrupted {}", app_function(report, interrupted)?))
        }
        FaultKind::Abort
        | FaultKind::Exception
        | FaultKind::SentSignal
        | FaultKind::HeapCorruption
        | FaultKind::Unknown => caller(frames),
        FaultKind::Panic | FaultKind::Hang | FaultKind::Requested => None,
        _ => {
            let at = frame_name(first)?;
            // For a fault in a library, the app's own function is more interesting.
            match app_function(report, frames) {
                Some(caller) if caller != at => Some(format!(" in {at}, called by {caller}")),
                _ => Some(format!(" in {at}")),
            }
        }
    }
}

/// Returns the app's own innermost function that has a name.
fn app_function(report: &Report, frames: &[Frame]) -> Option<String> {
    let rules = InAppRules::default();
    let rule = InApp::new(&rules, report);
    frames.iter().take(MAX_CALLERS).find_map(|frame| {
        let function = rule.functions(frame).find(|function| function.in_app && function.name.is_some())?;
        Some(with_source(short_function(function.name?, MAX_NAME).into_owned(), function.file, function.line))
    })
}

fn with_source(name: String, file: Option<&str>, line: Option<u32>) -> String {
    match (file, line) {
        (Some(file), Some(line)) => format!("{name} ({}:{line})", file_name(file)),
        _ => name,
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

/// Returns name, file and line of a frame's innermost function.
fn innermost_function(frame: &Frame) -> (Option<&str>, Option<&str>, Option<u32>) {
    match frame.inlined.first() {
        Some(inlined) => {
            (inlined.function.as_deref().or(inlined.raw_function.as_deref()), inlined.file.as_deref(), inlined.line)
        }
        None => (frame.function.as_deref().or(frame.raw_function.as_deref()), frame.file.as_deref(), frame.line),
    }
}

fn frame_name(frame: &Frame) -> Option<String> {
    let (name, file, line) = innermost_function(frame);
    let name = match (name, frame.module.as_deref(), frame.module_offset) {
        (Some(name), ..) => short_function(name, MAX_NAME).into_owned(),
        (None, Some(module), Some(offset)) => format!("{} + {offset}", file_name(module)),
        _ => return None,
    };
    Some(with_source(name, file, line))
}

/// Returns the first line of a text, cut if it is too long.
fn first_line(text: &str, longest: usize) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    match line.char_indices().nth(longest) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}
