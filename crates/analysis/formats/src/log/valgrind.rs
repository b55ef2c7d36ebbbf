//! Reads the deaths by signal that Valgrind reports.
//!
//! ```text
//! ==4711== Process terminating with default action of signal 11 (SIGSEGV): dumping core
//! ==4711==  Access not within mapped region at address 0x0
//! ==4711==    at 0x109129: total (cart.c:3)
//! ==4711==    by 0x10913E: main (in /home/shop/cart)
//! ==4711== HEAP SUMMARY:
//! ```
//!
//! Errors that the program survives, such as invalid reads, are not deaths. Source:
//! `coregrind/m_signals.c` and `m_debuginfo/debuginfo.c` of Valgrind.

use coroner_report::model::{Address, Crash, Frame, Signal, Thread, signal_name};
use coroner_report::wire::{AddressKind, FoundBy, Monitor, Os};

use super::lines::Lines;
use super::{Death, Found, MAX_FRAMES, MAX_LINES, address, own, parse_location};

const MARK: &str = "== Process terminating with default action of signal ";

pub(super) fn head(line: &str) -> Option<usize> {
    let (pid, _) = line.split_once(MARK)?;
    let start = pid.rfind("==")?;
    pid[start + 2..].parse::<u32>().ok().map(|_| start)
}

pub(super) fn read(mut lines: Lines<'_>) -> Option<Found<'_>> {
    let first = lines.next()?;
    let (pid, what) = first.text.strip_prefix("==")?.split_once(MARK)?;
    let number: i32 = what.split(' ').next()?.parse().ok()?;
    let mark = format!("=={pid}==");
    let pid: u32 = pid.parse().ok()?;
    let signal = Signal { number, name: signal_name(Os::NATIVE, number), ..Signal::default() };
    let mut crash = Crash { monitor: Monitor::SIGNAL, tid: pid.into(), ..Crash::default() };
    let mut frames: Vec<Frame> = Vec::new();
    for _ in 0..MAX_LINES {
        let before = lines;
        let Some(line) = lines.next() else { break };
        let Some(text) = line.text.strip_prefix(&mark).map(str::trim) else {
            lines = before;
            break;
        };
        match frame(text, frames.is_empty()) {
            Some(frame) if frames.len() < MAX_FRAMES => frames.push(frame),
            Some(_) => {}
            None if frames.is_empty() => {
                let at = text.split_once(" at address ").and_then(|(_, at)| address(at));
                crash.address = crash.address.or(at.map(|found| Address(found.0)));
            }
            None => break,
        }
    }
    let problem = frames.is_empty().then(|| format!("after line {}: the text ends before the stack", first.number));
    crash.signal = Some(Signal { address: crash.address, ..signal });
    let thread = Thread { tid: pid.into(), crashed: true, frames, ..Thread::default() };
    let death = Death { crash, pid: Some(pid), threads: vec![thread], problem, ..Death::default() };
    Some(Found { death, rest: lines })
}

/// Parses `by 0x10913E: main (cart.c:9)`, `at 0x48A2C: raise (in /usr/lib/libc.so.6)`.
fn frame(text: &str, is_first: bool) -> Option<Frame> {
    let rest = text.strip_prefix("at ").or_else(|| text.strip_prefix("by "))?;
    let (at, rest) = address(rest)?;
    let (name, place) = rest.strip_prefix(": ")?.rsplit_once(" (")?;
    let place = place.strip_suffix(')')?;
    let mut frame = Frame {
        address: Address(at),
        found_by: if is_first { FoundBy::CONTEXT } else { FoundBy::CFI },
        // A caller's printed address is inside its call.
        address_kind: AddressKind::INSTRUCTION,
        function: Some(name.to_owned()).filter(|name| name != "???"),
        ..Frame::default()
    };
    match place.strip_prefix("in ") {
        Some(module) => frame.module = Some(module.to_owned()),
        None => {
            let (file, line, _) = parse_location(place);
            (frame.file, frame.line) = (Some(file.to_owned()), line);
        }
    }
    let is_systems = frame.module.as_deref().is_some_and(|module| module.starts_with("/usr/lib"));
    frame.in_app = own(&frame, |_, _| false).map(|own| own && !is_systems);
    Some(frame)
}
