//! Reads Rust panics as printed by the default hook.
//!
//! ```text
//! thread 'main' (4711) panicked at src/main.rs:4:5:
//! index out of bounds: the len is 3 but the index is 99
//! stack backtrace:
//!    0: __rustc::rust_begin_unwind
//!              at /rustc/…/library/std/src/panicking.rs:698:5
//!    1: paint::fill
//!              at ./src/main.rs:4:5
//! note: Some details are omitted, run with `RUST_BACKTRACE=full` for a verbose backtrace.
//! ```
//!
//! Before Rust 1.73 the message was in the first line, in quotes and before the location; with
//! `RUST_BACKTRACE=full` each name is preceded by an address. Source: the panic hook and the
//! backtrace printer of Rust's standard library.

use coroner_report::model::{Address, Exception, Frame};
use coroner_report::wire::{AddressKind, FoundBy, Language, Monitor};

use super::lines::Lines;
use super::{Death, Found, MAX_FRAMES, MAX_LINES, address, exception, own, parse_location};

/// Maximum number of lines of a message.
const MAX_MESSAGE_LINES: usize = 200;
const BACKTRACE: &str = "stack backtrace:";
const NOTE: &str = "note: run with `RUST_BACKTRACE";

pub(super) fn head(line: &str) -> Option<usize> {
    let start = line.find("thread '")?;
    parts(line.get(start..)?).map(|_| start)
}

/// Returns the thread's name and id, and the text after `panicked at `.
fn parts(head: &str) -> Option<(&str, Option<u64>, &str)> {
    let quoted = head.strip_prefix("thread '")?;
    let (thread, rest) = quoted.split_once(" panicked at ")?;
    if let Some(name) = thread.strip_suffix('\'') {
        return Some((name, None, rest));
    }
    let (name, number) = thread.strip_suffix(')')?.rsplit_once("' (")?;
    Some((name, Some(number.parse().ok()?), rest))
}

pub(super) fn read(mut lines: Lines<'_>) -> Option<Found<'_>> {
    let first = lines.next()?;
    let (name, number, rest) = parts(&first.text)?;
    let tid = number.unwrap_or_default();
    let (message, location) = match in_one_line(rest) {
        Some((message, location)) => (message.to_owned(), location.to_owned()),
        None => (String::new(), rest.trim_end().trim_end_matches(':').to_owned()),
    };
    let (more, has_backtrace) = message_lines(&mut lines, !message.is_empty());
    let message = if message.is_empty() { more } else { message };
    let (frames, problem) = if has_backtrace { backtrace(&mut lines) } else { (Vec::new(), None) };
    let thrown = Exception {
        language: Language::RUST,
        message: Some(message),
        tid,
        location: Some(location).filter(|location| !location.is_empty()),
        frames,
        ..Exception::default()
    };
    let name = Some(name.to_owned()).filter(|name| name != "<unnamed>");
    let death = Death { problem, ..exception(thrown, name, Monitor::PANIC) };
    Some(Found { death, rest: lines })
}

/// Returns message and location from `'message', src/main.rs:2:5`.
fn in_one_line(rest: &str) -> Option<(&str, &str)> {
    let (message, location) = rest.strip_prefix('\'')?.rsplit_once("', ")?;
    Some((message, location))
}

/// Returns the message's lines, and whether a backtrace follows. If nothing marks its end, the
/// message is one line.
fn message_lines(lines: &mut Lines<'_>, is_known: bool) -> (String, bool) {
    let mut ahead = *lines;
    let mut message: Vec<String> = Vec::new();
    for _ in 0..MAX_MESSAGE_LINES {
        let Some(line) = ahead.next() else { break };
        if line.text == BACKTRACE {
            *lines = ahead;
            return (message.join("\n"), true);
        }
        if line.text.starts_with(NOTE) {
            *lines = ahead;
            return (message.join("\n"), false);
        }
        if head(&line.text).is_some() {
            break;
        }
        message.push(line.text.into_owned());
    }
    if is_known {
        return (String::new(), false);
    }
    let first = lines.next().map(|line| line.text.into_owned()).filter(|line| head(line).is_none());
    (first.unwrap_or_default(), false)
}

fn backtrace(lines: &mut Lines<'_>) -> (Vec<Frame>, Option<String>) {
    let mut frames: Vec<Frame> = Vec::new();
    for _ in 0..MAX_LINES {
        let before = *lines;
        let Some(line) = lines.next() else {
            let what = || format!("line {}: the text ends within a line of the backtrace", lines.number());
            let problem = lines.is_truncated().then(what);
            if !frames.is_empty() {
                return (finished(frames), problem);
            }
            break;
        };
        let text = line.text.trim_start();
        if let Some(source) = text.strip_prefix("at ") {
            if let Some(frame) = frames.last_mut() {
                let (file, line, column) = parse_location(source.trim_end());
                (frame.file, frame.line, frame.column) = (Some(file.to_owned()), line, column);
            }
            continue;
        }
        let indented = line.text.len() - text.len();
        let above = frames.last().map(|frame| frame.address);
        let frame = numbered(text).or_else(|| Some(named(text, above.filter(|_| indented >= 6 && !text.is_empty())?)));
        match frame {
            Some(frame) if frames.len() < MAX_FRAMES => frames.push(frame),
            Some(_) => {}
            None => {
                if !text.starts_with("note: ") {
                    *lines = before;
                }
                break;
            }
        }
    }
    let problem = frames.is_empty().then(|| format!("line {}: the backtrace has no frames", lines.number()));
    (finished(frames), problem)
}

/// Parses `12: name`, `12: 0x55d5b3c0d2f0 - name`.
fn numbered(text: &str) -> Option<Frame> {
    let (number, rest) = text.split_once(':')?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let rest = rest.trim_start();
    let parts = address(rest).and_then(|(address, rest)| Some((address, rest.strip_prefix(" - ")?)));
    let (address, name) = parts.unwrap_or((0, rest));
    is_number.then(|| named(name, Address(address)))
}

fn named(name: &str, address: Address) -> Frame {
    let name = name.trim_end();
    let name = without_hashes(name);
    // Without an address there is also no image.
    let module = (address.0 == 0).then(|| Language::RUST.to_string());
    Frame {
        module,
        address,
        found_by: if address.0 == 0 { FoundBy::MANAGED } else { FoundBy::CFI },
        address_kind: if address.0 == 0 { AddressKind::INSTRUCTION } else { AddressKind::RETURN },
        function: Some(name).filter(|name| name != "<unknown>" && !name.is_empty()),
        ..Frame::default()
    }
}

/// Returns the name without build-specific parts: `::h` and 16 digits at the end of a legacy name,
/// `[16 digits]` after crate names in a verbose one.
fn without_hashes(name: &str) -> String {
    let is_hash = |text: &str| text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let name = name.rsplit_once("::h").filter(|(_, hash)| is_hash(hash)).map_or(name, |(name, _)| name);
    let mut plain = String::with_capacity(name.len());
    let mut parts = name.split('[');
    plain.push_str(parts.next().unwrap_or_default());
    for part in parts {
        match part.split_once(']').filter(|(hash, _)| is_hash(hash)) {
            Some((_, rest)) => plain.push_str(rest),
            None => {
                plain.push('[');
                plain.push_str(part);
            }
        }
    }
    plain
}

fn finished(mut frames: Vec<Frame>) -> Vec<Frame> {
    // The end of the stack: `36: 0x0 - <unknown>`.
    while frames.last().is_some_and(|frame| frame.address.0 == 0 && frame.function.is_none()) {
        frames.pop();
    }
    frames.iter_mut().for_each(|frame| frame.in_app = own(frame, |_, _| false));
    frames
}
