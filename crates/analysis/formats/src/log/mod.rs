//! Deaths that programs wrote to a log themselves, as reports: what AddressSanitizer and its kin print, and the panics of Go and Rust.
//!
//! A log may have several, between other lines, and each line may begin with what a logger puts there (a time, a host, `program[pid]:`). A kind
//! is one file and one line of [`KINDS`].

mod address_sanitizer;
mod go;
mod lines;
mod rust;

use coroner_report::Report;
use coroner_report::model::{Crash, Exception, Frame, Header, Problem, Thread, Timestamp, is_runtime_code};
use coroner_report::wire::{FORMAT_VERSION, Monitor, Os};

use crate::content_id;
use lines::Lines;

/// Largest log that is read, bytes.
pub const MAX_LOG_BYTES: usize = 1 << 30;
/// Most deaths of a log that are read.
pub const MAX_DEATHS: usize = 10_000;
/// Most frames of a stack.
const MAX_FRAMES: usize = 4096;
/// Most lines of one death.
const MAX_LINES: usize = 200_000;

/// Why a log has no report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// It is too large.
    #[error("{size} bytes are more than a log may have ({} MiB)", MAX_LOG_BYTES >> 20)]
    TooLarge {
        /// Its size, bytes.
        size: usize,
    },
    /// Nothing in it is a death of a kind that is known.
    #[error("none of its {lines} lines begins a report of AddressSanitizer or a panic of Go or Rust")]
    Nothing {
        /// How many lines it has.
        lines: usize,
    },
}

/// A kind of text.
struct Kind {
    /// Where in a line its first words are, if they are in it.
    head: fn(&str) -> Option<usize>,
    /// Reads it; the first line is the one with the head. `None` if it is none after all.
    read: for<'t> fn(Lines<'t>) -> Option<Found<'t>>,
}

const KINDS: [Kind; 3] = [
    Kind { head: address_sanitizer::head, read: address_sanitizer::read },
    Kind { head: rust::head, read: rust::read },
    Kind { head: go::head, read: go::read },
];

/// One that was read.
struct Found<'t> {
    death: Death,
    /// The lines behind it.
    rest: Lines<'t>,
}

/// What a text says of a death.
#[derive(Debug, Default)]
struct Death {
    crash: Crash,
    exceptions: Vec<Exception>,
    threads: Vec<Thread>,
    images: Vec<coroner_report::model::Image>,
    annotations: Vec<coroner_report::model::Annotation>,
    arch: Option<coroner_process::registers::Arch>,
    pid: Option<u32>,
    /// What is missing, with the line where that shows.
    problem: Option<String>,
}

/// Reads the deaths of a log, in its order. `time` is when they were, for texts that don't say it: that of the file, say.
///
/// The system is taken to be that of this machine. The event id is the same each time that the same text is read, wherever it stands.
///
/// # Errors
/// There is none in it. One that is cut off is a report that says in [`Report::problems`] where.
pub fn read_log(bytes: &[u8], time: Option<Timestamp>) -> Result<Vec<Report>, LogError> {
    if bytes.len() > MAX_LOG_BYTES {
        return Err(LogError::TooLarge { size: bytes.len() });
    }
    let mut lines = Lines::of(bytes);
    let mut reports = Vec::new();
    while let Some((line, from)) = lines.next_from() {
        let found = KINDS.iter().find_map(|kind| {
            let at = (kind.head)(&line.text)?;
            Some((at, (kind.read)(from.behind_prefix(at))?))
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
    let Death { mut crash, exceptions, threads, images, annotations, arch, pid, problem } = death;
    let (name, logged) = process_of(prefix);
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
            process_name: name.unwrap_or_default(),
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

/// Name and number of the process, where a logger says them: `Nov 24 10:11:12 host paint[4711]: `.
fn process_of(prefix: &str) -> (Option<String>, Option<u32>) {
    let word = prefix.trim_end().trim_end_matches(':').rsplit(' ').next().unwrap_or_default();
    let parts = word.strip_suffix(']').and_then(|word| word.split_once('['));
    match parts {
        Some((name, pid)) => (Some(name.to_owned()).filter(|name| !name.is_empty()), pid.parse().ok()),
        None => (None, None),
    }
}

/// What a program says of its end: an exception with its stack, and the thread that it is of.
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

/// Whether a frame without an image is the app's own, by its function and its source.
fn own(frame: &Frame, is_runtime: impl Fn(&str, &str) -> bool) -> Option<bool> {
    let function = frame.function.as_deref()?;
    let file = frame.file.as_deref().unwrap_or_default();
    Some(!is_runtime_code(Some(function), frame.file.as_deref()) && !is_runtime(function, file))
}

/// `file:line:column`, `file:line`, `file`; the path may have colons.
fn place(text: &str) -> (&str, Option<u32>, Option<u32>) {
    let number = |text: &str| text.parse::<u32>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    let Some((before, last)) = text.rsplit_once(':').and_then(|(before, last)| Some((before, number(last)?))) else {
        return (text, None, None);
    };
    match before.rsplit_once(':').and_then(|(file, line)| Some((file, number(line)?))) {
        Some((file, line)) => (file, Some(line), Some(last)),
        None => (before, Some(last), None),
    }
}

/// `0x…`, at the beginning of a text; and what follows it.
fn address(text: &str) -> Option<(u64, &str)> {
    let digits = text.strip_prefix("0x")?;
    let end = digits.find(|digit: char| !digit.is_ascii_hexdigit()).unwrap_or(digits.len());
    let (digits, rest) = digits.split_at(end);
    Some((u64::from_str_radix(digits, 16).ok()?, rest))
}
