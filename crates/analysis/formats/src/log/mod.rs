//! Reads crashes that programs wrote to a log themselves.
//!
//! Supported are reports of sanitizers and Valgrind, panics of Go and Rust, fatal errors of Java
//! virtual machines, Node and Python, and the lines of systemd-coredump and of Linux.
//!
//! A log may contain several, between other lines, and each line may start with a logger's prefix
//! (a time, a host, `program[pid]:`). Each kind has a file and an entry in `KINDS`.

mod address_sanitizer;
mod color_eyre;
mod go;
mod images;
mod java;
mod kernel;
mod lines;
mod node;
mod python;
mod rust;
mod rust_overflow;
mod systemd;
mod undefined_behavior;
mod valgrind;

use coroner_report::Report;
use coroner_report::model::{Crash, Exception, Frame, Header, Problem, Thread, Timestamp, is_runtime_code};
use coroner_report::wire::{FORMAT_VERSION, Monitor, Os};

use crate::content_id;
use lines::Lines;

/// Maximum size of a log, in bytes.
pub const MAX_LOG_BYTES: usize = 1 << 30;
/// Maximum number of crashes read from a log.
pub const MAX_DEATHS: usize = 10_000;
/// Maximum number of frames of a stack.
const MAX_FRAMES: usize = 4096;
/// Maximum number of lines of one crash.
const MAX_LINES: usize = 200_000;

/// The reason why no report could be read from a log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The log is too large.
    #[error("the log is {size} bytes; the limit is {} MiB", MAX_LOG_BYTES >> 20)]
    TooLarge {
        /// Its size, in bytes.
        size: usize,
    },
    /// The log contains no crash of a known kind.
    #[error("no crash of a known kind in {lines} lines")]
    Nothing {
        /// The number of lines in the log.
        lines: usize,
    },
}

/// A kind of crash text.
struct Kind {
    /// Finds the start of the text in a line; returns its offset.
    head: fn(&str) -> Option<usize>,
    /// Reads the text; the first line is the one with the start. `None` if it turns out to be
    /// something else.
    read: for<'t> fn(Lines<'t>) -> Option<Found<'t>>,
}

const KINDS: [Kind; 12] = [
    Kind { head: address_sanitizer::head, read: address_sanitizer::read },
    Kind { head: undefined_behavior::head, read: undefined_behavior::read },
    Kind { head: valgrind::head, read: valgrind::read },
    Kind { head: java::head, read: java::read },
    Kind { head: python::head, read: python::read },
    Kind { head: node::head, read: node::read },
    Kind { head: systemd::head, read: systemd::read },
    Kind { head: kernel::head, read: kernel::read },
    Kind { head: rust_overflow::head, read: rust_overflow::read },
    Kind { head: color_eyre::head, read: color_eyre::read },
    Kind { head: rust::head, read: rust::read },
    Kind { head: go::head, read: go::read },
];

/// A crash that was read.
struct Found<'t> {
    death: Death,
    /// The lines after it.
    rest: Lines<'t>,
}

/// The crash in a text.
#[derive(Debug, Default)]
struct Death {
    crash: Crash,
    exceptions: Vec<Exception>,
    threads: Vec<Thread>,
    images: Vec<coroner_report::model::Image>,
    annotations: Vec<coroner_report::model::Annotation>,
    arch: Option<coroner_process::registers::Arch>,
    pid: Option<u32>,
    /// The process's name, if the text contains it.
    name: Option<String>,
    /// Description of what is missing, with the line number.
    problem: Option<String>,
}

/// Reads the crashes in a log, in the log's order. `time` is used for texts without a time, for
/// example the file's time.
///
/// The system is assumed to be this machine's. The event id is the same each time the same text is
/// read, wherever it is.
///
/// # Errors
/// [`LogError`] if the log is too large or contains no crash. A truncated crash results in a report
/// with an entry in [`Report::problems`].
pub fn read_log(bytes: &[u8], time: Option<Timestamp>) -> Result<Vec<Report>, LogError> {
    if bytes.len() > MAX_LOG_BYTES {
        return Err(LogError::TooLarge { size: bytes.len() });
    }
    let mut lines = Lines::new(bytes);
    let mut reports = Vec::new();
    while let Some((line, from)) = lines.next_from() {
        let found = KINDS.iter().find_map(|kind| {
            let at = (kind.head)(&line.text)?;
            Some((at, (kind.read)(from.after_prefix(at))?))
        });
        let Some((at, Found { death, rest })) = found else { continue };
        let prefix = line.text.get(..at).unwrap_or_default();
        reports.push(report(death, prefix, line.offset, from.text_up_to(rest), time));
        lines = rest.without_prefix();
        if reports.len() >= MAX_DEATHS {
            break;
        }
    }
    match reports.is_empty() {
        true => Err(LogError::Nothing { lines: lines.number() }),
        false => Ok(reports),
    }
}

fn report(death: Death, prefix: &str, offset: usize, text: &[u8], time: Option<Timestamp>) -> Report {
    let Death { mut crash, exceptions, threads, images, annotations, arch, pid, name, problem } = death;
    let (logger, logged) = process_of(prefix);
    if let (0, Some(time)) = (crash.time.0, time) {
        crash.time = time;
    }
    let id = content_id([text, prefix.as_bytes(), &crash.time.0.to_le_bytes()]);
    let mut report = Report {
        complete: problem.is_none(),
        problems: problem.into_iter().map(|what| Problem { section: None, offset: offset as u64, what }).collect(),
        header: Header {
            format_version: FORMAT_VERSION,
            event_id: id,
            pid: pid.or(logged).unwrap_or_default(),
            process_name: name.or(logger).unwrap_or_default(),
            arch,
            os: Os::NATIVE,
            ..Header::default()
        },
        crash: Some(crash),
        exceptions,
        threads,
        images,
        annotations,
        ..Report::default()
    };
    report.attribute_frames();
    report
}

/// Returns the process's name and id, if the logger writes them: `Nov 24 10:11:12 host paint[4711]:
/// `.
fn process_of(prefix: &str) -> (Option<String>, Option<u32>) {
    let word = prefix.trim_end().trim_end_matches(':').rsplit(' ').next().unwrap_or_default();
    let parts = word.strip_suffix(']').and_then(|word| word.split_once('['));
    match parts {
        Some((name, pid)) => (Some(name.to_owned()).filter(|name| !name.is_empty()), pid.parse().ok()),
        None => (None, None),
    }
}

/// Creates a crash from an exception with its stack, and its thread.
fn exception(exception: Exception, name: Option<String>, monitor: Monitor) -> Death {
    let thread =
        Thread { tid: exception.tid, name, crashed: true, frames: exception.frames.clone(), ..Thread::default() };
    Death {
        crash: Crash {
            monitor,
            tid: exception.tid,
            message: exception.message.clone(),
            location: exception.location.clone(),
            ..Crash::default()
        },
        exceptions: vec![exception],
        threads: vec![thread],
        ..Death::default()
    }
}

/// Whether a frame without an image is the app's own code, based on its function and source file.
fn own(frame: &Frame, is_runtime: impl Fn(&str, &str) -> bool) -> Option<bool> {
    let function = frame.function.as_deref()?;
    let file = frame.file.as_deref().unwrap_or_default();
    Some(!is_runtime_code(Some(function), frame.file.as_deref()) && !is_runtime(function, file))
}

/// Parses `file:line:column`, `file:line`, `file`; the path may contain colons.
fn parse_location(text: &str) -> (&str, Option<u32>, Option<u32>) {
    let number = |text: &str| text.parse::<u32>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    let Some((before, last)) = text.rsplit_once(':').and_then(|(before, last)| Some((before, number(last)?))) else {
        return (text, None, None);
    };
    match before.rsplit_once(':').and_then(|(file, line)| Some((file, number(line)?))) {
        Some((file, line)) => (file, Some(line), Some(last)),
        None => (before, Some(last), None),
    }
}

/// Parses `0x…` at the start of a text; returns the number and the rest.
fn address(text: &str) -> Option<(u64, &str)> {
    let digits = text.strip_prefix("0x")?;
    let end = digits.find(|digit: char| !digit.is_ascii_hexdigit()).unwrap_or(digits.len());
    let (digits, rest) = digits.split_at(end);
    Some((u64::from_str_radix(digits, 16).ok()?, rest))
}
