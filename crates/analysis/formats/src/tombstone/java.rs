//! Reads Java stack traces, and ART's frames in the same form.
//!
//! Stack traces are written by `Throwable.printStackTrace`.

use coroner_report::model::{Exception, Frame};
use coroner_report::wire::{FoundBy, Language};

use crate::tombstone::MAX_FRAMES;

/// Maximum number of exceptions in a chain of causes.
const MAX_CAUSES: usize = 64;

/// Whether a frame is from a managed runtime, with a method and a line instead of an address.
pub fn is_managed(frame: &Frame) -> bool {
    frame.found_by == FoundBy::MANAGED
}

/// Parses a frame such as `at com.example.Shop.open(Shop.java:12)`; `None` for other lines.
///
/// The line may be surrounded by spaces.
pub(crate) fn frame(line: &str) -> Option<Frame> {
    let text = line.trim().strip_prefix("at ")?;
    let (method, place) = text.strip_suffix(')')?.rsplit_once('(')?;
    let (file, number) = match place.rsplit_once(':') {
        Some((file, number)) => (file, number.parse::<u32>().ok()),
        None => (place, None),
    };
    // "Native method", "Unknown Source", "unavailable:-1", "D8$$SyntheticClass".
    let has_file =
        !matches!(file.to_ascii_lowercase().as_str(), "native method" | "unknown source" | "unavailable" | "");
    // A module or a class loader before the class: `java.base/java.lang.Thread.run`,
    // `app//com.example.Shop.open`.
    let method = method.rsplit_once('/').map_or(method, |(_, method)| method);
    Some(Frame {
        found_by: FoundBy::MANAGED,
        function: Some(method.to_owned()),
        file: has_file.then(|| file.to_owned()),
        line: number.filter(|number| has_file && *number > 0),
        ..Frame::default()
    })
}

/// Returns the exceptions in a Java stack trace: the uncaught one first, then its causes. Empty if
/// the text contains none.
///
/// Suppressed exceptions are left out. Frames that a cause shares with the preceding exception
/// (`... 12 more`) are copied from it. `tid` is the throwing thread.
pub fn exceptions_of_stack_trace(text: &str, tid: u64) -> Vec<Exception> {
    let mut exceptions: Vec<Exception> = Vec::new();
    // A suppressed exception's lines are indented more than those of the surrounding trace.
    let mut suppressed = None;
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        let trimmed = line.trim();
        if suppressed.is_some_and(|outer| indent > outer) || trimmed.is_empty() {
            continue;
        }
        suppressed = None;
        if trimmed.starts_with("Suppressed: ") {
            suppressed = Some(indent.saturating_sub(1));
            continue;
        }
        if let Some(frame) = frame(trimmed) {
            if let Some(exception) = exceptions.last_mut().filter(|exception| exception.frames.len() < MAX_FRAMES) {
                exception.frames.push(frame);
            }
            continue;
        }
        let more = trimmed.strip_prefix("... ").and_then(|rest| rest.strip_suffix(" more"));
        if let Some(more) = more.and_then(|number| number.parse::<usize>().ok()) {
            if let [.., outer, cause] = exceptions.as_mut_slice() {
                let common = outer.frames.len().saturating_sub(more);
                cause.frames.extend_from_slice(&outer.frames[common..]);
            }
            continue;
        }
        let cause = trimmed.strip_prefix("Caused by: ");
        let is_full = exceptions.len() >= MAX_CAUSES;
        match exceptions.last_mut() {
            // A message with several lines.
            Some(exception) if cause.is_none() && exception.frames.is_empty() => {
                let message = exception.message.get_or_insert_default();
                message.push('\n');
                message.push_str(trimmed);
            }
            Some(_) if cause.is_none() => {}
            _ if is_full => break,
            _ => {
                let text = cause.unwrap_or(trimmed);
                let text = text.strip_prefix("Exception in thread ").map_or(text, |rest| {
                    rest.strip_prefix('"').and_then(|rest| rest.split_once("\" ")).map_or(rest, |(_, rest)| rest)
                });
                let (kind, message) =
                    text.split_once(": ").map_or((text, None), |(kind, message)| (kind, Some(message)));
                exceptions.push(Exception {
                    language: Language::JAVA,
                    type_name: Some(kind.to_owned()),
                    message: message.map(str::to_owned),
                    tid,
                    ..Exception::default()
                });
            }
        }
    }
    exceptions
}
