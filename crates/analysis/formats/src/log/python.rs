//! Reads the output of Python's faulthandler and of its fatal errors.
//!
//! ```text
//! Fatal Python error: Segmentation fault
//!
//! Current thread 0x00007f0a3c5d6740 (most recent call first):
//!   File "/home/shop/cart.py", line 3 in total
//!   File "/home/shop/cart.py", line 5 in <module>
//!
//! Extension modules: numpy.core._multiarray_umath (total: 1)
//! ```
//!
//! Source: `Modules/faulthandler.c` and `Python/traceback.c` of CPython.

use coroner_report::model::{Crash, Exception, Frame, Signal, Thread, signal_name};
use coroner_report::wire::{FoundBy, Language, Monitor, Os};

use super::lines::Lines;
use super::{Death, Found, MAX_FRAMES, MAX_LINES};
use crate::MAX_THREADS;

const HEAD: &str = "Fatal Python error: ";
/// Messages of faulthandler with the signal.
const SIGNALS: [(&str, &str); 5] = [
    ("Segmentation fault", "SIGSEGV"),
    ("Bus error", "SIGBUS"),
    ("Aborted", "SIGABRT"),
    ("Floating point exception", "SIGFPE"),
    ("Illegal instruction", "SIGILL"),
];

pub(super) fn head(line: &str) -> Option<usize> {
    line.find(HEAD)
}

pub(super) fn read(mut lines: Lines<'_>) -> Option<Found<'_>> {
    let first = lines.next()?;
    let message = first.text.strip_prefix(HEAD)?.trim().to_owned();
    let mut threads: Vec<Thread> = Vec::new();
    for _ in 0..MAX_LINES {
        let before = lines;
        let Some(line) = lines.next() else { break };
        let text = line.text.trim_end();
        let is_stack = |text: &str| text.contains("hread 0x") && text.ends_with("(most recent call first):");
        if is_stack(text) {
            let id = text.split_once("hread 0x").map_or("", |(_, rest)| rest.split(' ').next().unwrap_or_default());
            let tid = u64::from_str_radix(id, 16).unwrap_or_default();
            let crashed = text.starts_with("Current thread");
            // Since 3.14, the name is in brackets.
            let name = text.split_once(" [").and_then(|(_, rest)| rest.split(']').next()).map(ToOwned::to_owned);
            threads.push(Thread { tid, name, crashed, ..Thread::default() });
            if threads.len() > MAX_THREADS {
                break;
            }
        } else if let (Some(frame), Some(thread)) = (frame(text), threads.last_mut()) {
            if thread.frames.len() < MAX_FRAMES {
                thread.frames.push(frame);
            }
        } else if (!threads.is_empty() && !is_between(text)) || head(text).is_some() {
            lines = before;
            break;
        }
    }
    let os = Os::NATIVE;
    let name = SIGNALS.iter().find(|(said, _)| message.starts_with(said)).map(|(_, name)| *name);
    let number = name.and_then(|name| (1..32).find(|number| signal_name(os, *number) == Some(name)));
    let signal = number.map(|number| Signal { number, name: signal_name(os, number), ..Signal::default() });
    threads.sort_by_key(|thread| !thread.crashed);
    let problem = threads.is_empty().then(|| format!("after line {}: the text ends before the stacks", first.number));
    if threads.is_empty() {
        threads.push(Thread::default());
    }
    threads[0].crashed = true;
    let tid = threads[0].tid;
    let thrown = Exception {
        language: Language::PYTHON,
        type_name: Some("fatal error of Python".to_owned()),
        message: Some(message.clone()),
        tid,
        frames: threads[0].frames.clone(),
        ..Exception::default()
    };
    let crash = Crash { monitor: Monitor::SIGNAL, tid, signal, message: Some(message), ..Crash::default() };
    let death = Death { crash, exceptions: vec![thrown], threads, problem, ..Death::default() };
    Some(Found { death, rest: lines })
}

/// Whether a line may be between the stacks, or end one.
fn is_between(text: &str) -> bool {
    text.is_empty() || text == "  ..." || text.starts_with("  <no Python frame>")
}

/// Parses `  File "/home/shop/cart.py", line 3 in total`.
fn frame(text: &str) -> Option<Frame> {
    let (file, rest) = text.strip_prefix("  File \"")?.split_once("\", line ")?;
    let (line, function) = rest.split_once(" in ").unwrap_or((rest, "<module>"));
    let is_systems = ["/lib/python", "/site-packages/", "/dist-packages/", "<frozen "];
    Some(Frame {
        found_by: FoundBy::MANAGED,
        module: Some(Language::PYTHON.to_string()),
        function: Some(function.to_owned()),
        in_app: Some(!is_systems.iter().any(|system| file.contains(system))),
        file: Some(file.to_owned()),
        line: line.trim().parse().ok(),
        ..Frame::default()
    })
}
