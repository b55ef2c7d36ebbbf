//! Reads the lines that Linux logs about a process that dies of a fault.
//!
//! ```text
//! [12345.678901] paint[4711]: segfault at 0 ip 0000557f1ad0d13d sp 00007ffd7a4b8a90 error 6 in paint[557f1ad0d000+1000]
//! [12345.678950] Code: 48 89 e5 48 c7 45 f8 00 00 00 00 48 8b 45 f8 <c7> 00 01 00 00
//! [12345.678951] traps: paint[4712] general protection fault ip:557f1ad0d13d sp:7ffd7a4b8a90 error:0 in paint[557f1ad0d000+1000]
//! ```
//!
//! Source: `arch/x86/mm/fault.c` and `arch/x86/kernel/traps.c` of Linux.

use coroner_process::registers::Arch;
use coroner_report::model::{Address, Annotation, Crash, Frame, Signal, Thread, signal_code_name, signal_name};
use coroner_report::wire::{Access, AddressKind, FoundBy, Monitor, Os};

use super::lines::Lines;
use super::{Death, Found};

/// Traps with their signals.
const TRAPS: [(&str, &str); 5] = [
    ("general protection fault", "SIGSEGV"),
    ("trap invalid opcode", "SIGILL"),
    ("trap divide error", "SIGFPE"),
    ("trap int3", "SIGTRAP"),
    ("trap stack segment", "SIGBUS"),
];

/// A line's facts.
struct Fault<'t> {
    name: &'t str,
    pid: u32,
    signal: &'static str,
    address: Option<u64>,
    pc: u64,
    /// Bits of the processor's error code.
    error: u64,
    /// The image's name.
    module: Option<&'t str>,
}

pub(super) fn head(line: &str) -> Option<usize> {
    let mark = line.find("]: segfault at ").or_else(|| TRAPS.iter().find_map(|trap| line.find(trap.0)))?;
    let name = line[..mark].trim_end_matches([']', ' ']).rfind('[')?;
    let start = line[..name].rfind(' ').map_or(0, |space| space + 1);
    fault(&line[start..]).map(|_| start)
}

fn fault(text: &str) -> Option<Fault<'_>> {
    let (name, rest) = text.split_once('[')?;
    let (pid, rest) = rest.split_once(']')?;
    let rest = rest.trim_start_matches(':').trim_start();
    let trap = TRAPS.iter().find(|trap| rest.starts_with(trap.0));
    if trap.is_none() && !rest.starts_with("segfault at ") {
        return None;
    }
    // `ip 0000557f1ad0d13d`, `ip:557f1ad0d13d`
    let value = |key: &str| {
        let (_, rest) = rest.split_once(key)?;
        let rest = rest.trim_start_matches([' ', ':']);
        u64::from_str_radix(rest.split([' ', ':']).next()?, 16).ok()
    };
    Some(Fault {
        name,
        pid: pid.parse().ok()?,
        signal: trap.map_or("SIGSEGV", |trap| trap.1),
        address: value("segfault at"),
        pc: value(" ip")?,
        error: value(" error").unwrap_or_default(),
        module: rest.rsplit_once(" in ").and_then(|(_, module)| module.split('[').next()),
    })
}

pub(super) fn read(mut lines: Lines<'_>) -> Option<Found<'_>> {
    let first = lines.next()?;
    let Fault { name, pid, signal, address, pc, error, module } = fault(&first.text)?;
    let os = Os::LINUX;
    let number = (1..32).find(|number| signal_name(os, *number) == Some(signal))?;
    // Bit 0: the page is present; bit 1: a write; bit 4: an instruction fetch.
    let code = if address.is_none() { 0x80 } else { 1 + (error & 1) as i32 };
    let signal = Signal {
        number,
        name: signal_name(os, number),
        code,
        code_name: signal_code_name(os, number, code).filter(|_| number == 11),
        address: address.map(Address),
        ..Signal::default()
    };
    let access = match address {
        None => None,
        Some(_) if error & 0x10 != 0 => Some(Access::EXECUTE),
        Some(_) if error & 2 != 0 => Some(Access::WRITE),
        Some(_) => Some(Access::READ),
    };
    let frame = Frame {
        address: Address(pc),
        found_by: FoundBy::CONTEXT,
        address_kind: AddressKind::INSTRUCTION,
        module: module.map(ToOwned::to_owned),
        ..Frame::default()
    };
    let tid = u64::from(pid);
    let crash = Crash {
        monitor: Monitor::SIGNAL,
        signal: Some(signal),
        tid,
        address: address.map(Address),
        access,
        ..Crash::default()
    };
    let mut annotations = vec![annotation(&first.text)];
    let mut ahead = lines;
    if let Some(line) = ahead.next().filter(|line| line.text.contains("Code: ")) {
        annotations.push(annotation(&line.text));
        lines = ahead;
    }
    let death = Death {
        crash,
        threads: vec![Thread { tid, crashed: true, frames: vec![frame], ..Thread::default() }],
        annotations,
        arch: Some(Arch::X86_64),
        pid: Some(pid),
        name: Some(name.to_owned()),
        problem: Some(format!("line {}: the kernel's line has no stack", first.number)),
        ..Death::default()
    };
    Some(Found { death, rest: lines })
}

fn annotation(text: &str) -> Annotation {
    Annotation { source: "kernel".to_owned(), text: text.trim().to_owned(), ..Annotation::default() }
}
