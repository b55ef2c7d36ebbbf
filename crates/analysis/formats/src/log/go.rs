//! Reads the output of Go's runtime when it terminates a program.
//!
//! It writes panics, fatal errors and signals, each with goroutine stacks.
//!
//! ```text
//! panic: runtime error: invalid memory address or nil pointer dereference
//! [signal SIGSEGV: segmentation violation code=0x1 addr=0x0 pc=0x4a3f2e]
//!
//! goroutine 1 [running]:
//! main.(*Cart).Total(...)
//!     /home/shop/main.go:10
//! main.main()
//!     /home/shop/main.go:15 +0x1d
//!
//! goroutine 18 [chan receive, 2 minutes]:
//! …
//! created by main.main in goroutine 1
//!     /home/shop/main.go:12 +0x54
//! ```
//!
//! Source: `runtime/panic.go` and `runtime/traceback.go` of Go.

use coroner_report::model::{Address, Exception, Frame, Signal, Thread, signal_name};
use coroner_report::wire::{FoundBy, Language, Monitor, Os};

use super::lines::Lines;
use super::{Death, Found, MAX_FRAMES, MAX_LINES, address, exception, own, parse_location};
use crate::MAX_THREADS;

/// Maximum number of lines between the first line and the first goroutine.
const MAX_MESSAGE_LINES: usize = 64;

/// Finds `panic: `, `fatal error: `, `SIGABRT: abort` at the start of a line, or after a logger's
/// prefix, which ends with a space.
pub(super) fn head(line: &str) -> Option<usize> {
    let starts = |at: usize| at == 0 || line.as_bytes().get(at - 1) == Some(&b' ');
    let found = ["panic: ", "fatal error: ", "SIG"].iter().filter_map(|word| line.find(word)).filter(|at| starts(*at));
    found.min().filter(|at| kind(&line[*at..]).is_some())
}

/// Returns the type of the termination and its message.
fn kind(text: &str) -> Option<(&str, &str)> {
    for word in ["panic", "fatal error"] {
        if let Some(message) = text.strip_prefix(word).and_then(|rest| rest.strip_prefix(": ")) {
            return Some((word, message));
        }
    }
    let (signal, message) = text.split_once(": ")?;
    let is_signal = signal.starts_with("SIG") && signal.bytes().all(|byte| byte.is_ascii_uppercase());
    is_signal.then_some((signal, message))
}

/// Parses the heading of a goroutine's stack: its number and state.
fn goroutine(line: &str) -> Option<(u64, &str)> {
    let (number, rest) = line.strip_prefix("goroutine ")?.split_once(' ')?;
    // `gp=0xc000002380 m=0 mp=0x5f1a80 [running]:` with GOTRACEBACK=system.
    let state = rest.strip_suffix("]:")?.split_once('[')?.1;
    Some((number.parse().ok()?, state))
}

pub(super) fn read(mut lines: Lines<'_>) -> Option<Found<'_>> {
    let first = lines.next()?;
    let (kind, message) = kind(&first.text)?;
    let mut message = vec![message.to_owned()];
    let mut signal = None;
    let mut current = None;
    for line in lines.by_ref().take(MAX_MESSAGE_LINES) {
        current = goroutine(&line.text).map(|(number, state)| thread(number, state));
        if current.is_some() {
            break;
        }
        // Another heading inside a panic is indented. This one isn't, so it starts another panic,
        // and the first one was only a log line.
        if head(&line.text) == Some(0) {
            return None;
        }
        match line.text.trim().strip_prefix("[signal ") {
            Some(text) => signal = signal.or_else(|| signal_of(text)),
            None => message.push(line.text.trim().to_owned()),
        }
    }
    let message = message_of(message, kind);
    // Without a goroutine it is only a log line.
    let mut current = current?;
    if kind.starts_with("SIG") {
        // `PC=0x47fcf6 m=3 sigcode=1 addr=0x0`
        let values = message.iter().find(|line| line.starts_with("PC=")).map_or("", String::as_str);
        signal = signal_of(&format!("{kind}: {values}"));
    }
    let mut threads: Vec<Thread> = Vec::new();
    let mut is_creator = false;
    for _ in 0..MAX_LINES {
        let before = lines;
        let Some(line) = lines.next() else { break };
        let text = line.text.as_ref();
        if let Some((number, state)) = goroutine(text) {
            threads.push(std::mem::replace(&mut current, thread(number, state)));
            if threads.len() >= MAX_THREADS {
                break;
            }
            continue;
        }
        if let Some(source) = text.strip_prefix(['\t', ' ']) {
            if let Some(frame) = current.frames.last_mut().filter(|frame| frame.file.is_none() && !is_creator) {
                // `/home/shop/main.go:15 +0x1d`; with GOTRACEBACK=system more values follow.
                let (file, line, _) = parse_location(
                    source.trim().split(" +0x").next().unwrap_or_default().split(" fp=0x").next().unwrap_or_default(),
                );
                (frame.file, frame.line) = (Some(file.to_owned()), line);
            }
            continue;
        }
        is_creator = text.starts_with("created by ");
        let is_between = text.is_empty() || is_creator || text.starts_with("...") || text.starts_with("[originating ");
        if is_between {
            continue;
        }
        match function(text) {
            Some(function) if current.frames.len() < MAX_FRAMES => current.frames.push(Frame {
                found_by: FoundBy::MANAGED,
                // In place of an image.
                module: Some(Language::GO.to_string()),
                function: Some(function.to_owned()),
                ..Frame::default()
            }),
            Some(_) => {}
            None => {
                lines = before;
                break;
            }
        }
    }
    threads.push(current);
    for frame in threads.iter_mut().flat_map(|thread| thread.frames.iter_mut()) {
        frame.in_app = own(frame, is_runtime);
    }
    let problem = threads[0]
        .frames
        .is_empty()
        .then(|| format!("after line {}: the text ends before the first goroutine's stack", lines.number()));
    let thrown = Exception {
        language: Language::GO,
        type_name: Some(kind.to_owned()),
        message: Some(message.join("\n")),
        tid: threads[0].tid,
        frames: threads[0].frames.clone(),
        ..Exception::default()
    };
    let mut death = Death { problem, ..exception(thrown, None, Monitor::PANIC) };
    threads[0].crashed = true;
    death.crash.address = signal.as_ref().and_then(|signal| signal.address);
    death.crash.signal = signal;
    death.threads = threads;
    Some(Found { death, rest: lines })
}

/// Returns the lines of a message without the marks of panics that were recovered and raised again.
///
/// `panic: boom [recovered]`, then `panic: boom`; since Go 1.23 `panic: boom [recovered,
/// repanicked]`.
fn message_of(mut lines: Vec<String>, kind: &str) -> Vec<String> {
    let first = &mut lines[0];
    for mark in [" [recovered, repanicked]", " [recovered]"] {
        if let Some(message) = first.strip_suffix(mark) {
            *first = message.to_owned();
        }
    }
    let again = format!("{kind}: {first}");
    lines.retain(|line| !line.is_empty() && *line != again && *line != format!("{again} [recovered]"));
    lines
}

fn thread(number: u64, state: &str) -> Thread {
    Thread { tid: number, name: Some(format!("goroutine, {state}")), main: number == 1, ..Thread::default() }
}

/// Returns the function in `main.(*Cart).Total(0xc000012345, {0x4b2c80?, 0x1})` or `panic({…})`.
/// The arguments, which are words of memory, are dropped.
fn function(text: &str) -> Option<&str> {
    let end = text.strip_suffix(')')?;
    // Arguments only contain parentheses inside braces; those of a method's receiver come before a
    // dot.
    let open = end.char_indices().rev().scan(0_i32, |depth, (at, character)| {
        match character {
            ')' | '}' => *depth += 1,
            '{' => *depth -= 1,
            '(' if *depth > 0 => *depth -= 1,
            '(' => return Some(Some(at)),
            _ => {}
        }
        Some(None)
    });
    let name = text.get(..open.flatten().next()?)?;
    (!name.is_empty() && !name.contains(' ')).then_some(name)
}

/// Parses `SIGSEGV: segmentation violation code=0x1 addr=0x0 pc=0x4a3f2e]`.
fn signal_of(text: &str) -> Option<Signal> {
    let name = text.split(':').next()?;
    let os = Os::NATIVE;
    let number = (1..32).find(|number| signal_name(os, *number) == Some(name))?;
    let value = |key: &str| Some(address(text.split_once(key)?.1)?.0);
    let decimal = || text.split_once(" sigcode=")?.1.split(' ').next()?.parse().ok();
    let code = value(" code=").map(|code| code as u32 as i32).or_else(decimal).unwrap_or_default();
    Some(Signal {
        number,
        name: signal_name(os, number),
        code,
        code_name: coroner_report::model::signal_code_name(os, number, code),
        address: value(" addr=").map(Address),
        ..Signal::default()
    })
}

/// Whether a function belongs to Go itself: its runtime, its distribution or the module cache.
fn is_runtime(function: &str, file: &str) -> bool {
    function.starts_with("runtime.")
        || function == "panic"
        || file.contains("/go/src/")
        || file.contains("/pkg/mod/")
        || file.contains("/usr/lib/go")
}
