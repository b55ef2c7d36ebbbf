//! Reads the lines of Rust's standard library about a stack overflow.
//!
//! ```text
//! thread 'worker' (4711) has overflowed its stack
//! fatal runtime error: stack overflow, aborting
//! ```
//!
//! Source: the signal handler in Rust's standard library.

use coroner_report::model::{Crash, CrashFlag, Signal, Thread, signal_name};
use coroner_report::wire::{Monitor, Os};

use super::lines::Lines;
use super::{Death, Found};

const MARK: &str = " has overflowed its stack";

pub(super) fn head(line: &str) -> Option<usize> {
    let start = line.find("thread '")?;
    line[start..].trim_end().ends_with(MARK).then_some(start)
}

pub(super) fn read(mut lines: Lines<'_>) -> Option<Found<'_>> {
    let first = lines.next()?;
    let thread = first.text.trim_end().strip_prefix("thread '")?.strip_suffix(MARK)?;
    let (name, tid) = match thread.strip_suffix(')').and_then(|thread| thread.rsplit_once("' (")) {
        Some((name, tid)) => (name, tid.parse().unwrap_or_default()),
        None => (thread.strip_suffix('\'')?, 0),
    };
    let mut ahead = lines;
    if ahead.next().is_some_and(|line| line.text.starts_with("fatal runtime error: stack overflow")) {
        lines = ahead;
    }
    // The standard library aborts after its lines.
    let os = Os::NATIVE;
    let signal = Signal { number: 6, name: signal_name(os, 6), ..Signal::default() };
    let mut crash = Crash { monitor: Monitor::SIGNAL, tid, signal: Some(signal), ..Crash::default() };
    crash.flags.push(CrashFlag::StackOverflow);
    let name = Some(name.to_owned()).filter(|name| name != "<unknown>");
    let thread = Thread { tid, main: name.as_deref() == Some("main"), name, crashed: true, ..Thread::default() };
    let problem = Some(format!("line {}: the text has no stack", first.number));
    let death = Death { crash, threads: vec![thread], problem, ..Death::default() };
    Some(Found { death, rest: lines })
}
