//! Checks reports against the table of faults.

use anyhow::{Context, bail, ensure};
use coroner_faults::threads::{CRASHER, PARKED, PARKED_DEPTH};
use coroner_faults::{Ending, Fault, Mach, Thread as Where, Top};
use coroner_report::model::{CrashFlag, Frame, Report, Thread};
use coroner_report::wire::Monitor;

/// Checks all properties of a report about `fault`, with `parked` other threads.
///
/// # Errors
/// The first wrong property.
pub fn report_is_right(report: &Report, fault: &Fault, parked: usize) -> anyhow::Result<()> {
    ensure!(report.complete, "the report is incomplete: {:?}", report.problems);
    ensure!(report.end.is_some(), "the report has no end record");
    ensure!(!report.images.is_empty(), "the report has no images");
    signal_is_right(report, fault)?;
    abort_message_is_right(report, fault)?;
    let thread = report.crashed_thread().context("the report has no crashed thread")?;
    thread_is_right(thread, fault)?;
    frames_are_right(thread, fault)?;
    parked_threads_are_right(report, parked)
}

/// Checks the properties that a report about `fault` must have even if neither the program nor its
/// stack is readable: the crash, and the crashed thread's registers.
///
/// # Errors
/// The first wrong property.
pub fn signal_and_registers_are_right(report: &Report, fault: &Fault) -> anyhow::Result<()> {
    signal_is_right(report, fault)?;
    let crash = report.crash.as_ref().context("the report has no crash")?;
    let thread = report.crashed_thread().context("the report has no crashed thread")?;
    ensure!(thread.tid == crash.tid, "thread {} crashed, but thread {} is marked as crashed", crash.tid, thread.tid);
    let registers = thread.registers.as_ref().context("the crashed thread has no registers")?;
    let has = |names: [&str; 2]| registers.named().any(|(name, value)| names.contains(&name) && value != 0);
    ensure!(has(["rip", "pc"]) && has(["rsp", "sp"]), "the crashed thread has no program counter or no stack pointer");
    Ok(())
}

/// Checks the C library's message for faults that it detects. On Darwin only the signal's sender is
/// known.
fn abort_message_is_right(report: &Report, fault: &Fault) -> anyhow::Result<()> {
    let android = cfg!(target_os = "android");
    if !android && !cfg!(all(target_os = "linux", target_env = "gnu")) {
        return Ok(());
    }
    let expected = match fault.name {
        // Messages of glibc and of bionic.
        "assert" if android => "assertion \"patient->alive\" failed",
        "assert" => "assert_here: Assertion `patient->alive' failed.",
        "fortify" if android => "FORTIFY: memcpy: prevented 16-byte write into 8-byte buffer",
        "fortify" => "*** buffer overflow detected ***: terminated",
        "double-free" => "free(): double free detected",
        "abort-in-malloc" => "malloc(): invalid size (unsorted)",
        _ => {
            ensure!(report.annotations.is_empty(), "unexpected annotations: {:?}", report.annotations);
            return Ok(());
        }
    };
    let printed = report.abort_message().context("the report has no abort message")?;
    ensure!(printed.contains(expected), "abort message: expected {expected:?}, got {printed:?}");
    Ok(())
}

fn signal_is_right(report: &Report, fault: &Fault) -> anyhow::Result<()> {
    let crash = report.crash.as_ref().context("the report has no crash")?;
    if fault.name == "panic-abort" {
        // Reported by the panic hook, before the signal.
        ensure!(crash.monitor == Monitor::PANIC, "monitor: expected a panic, got {}", crash.monitor);
        ensure!(crash.signal.is_none() && crash.message.is_some(), "the report has a signal, or no message");
        ensure!(report.exceptions.len() == 1, "expected one exception, got {}", report.exceptions.len());
        return Ok(());
    }
    let signal = crash.signal.as_ref().context("the report has no signal")?;
    let expected = match fault.ending {
        // Rust's own handler aborts afterwards; the report is about the fault.
        Ending::Signal(number) | Ending::Child(number) | Ending::Either(_, number) => number,
    };
    // From the exception. The kernel also checks the address: on the main thread's stack it sends
    // SIGSEGV.
    let expected = fault.mach.and_then(Mach::signal_of_denial).unwrap_or(expected);
    ensure!(signal.number == expected, "signal: expected {expected}, got {}", signal.number);
    if let Some(code) = fault.code {
        ensure!(signal.code == code, "si_code: expected {code}, got {}", signal.code);
    }
    if fault.name == "bad-system-call" {
        let (name, arch) = (signal.syscall_name, signal.syscall_arch);
        ensure!((name, arch) == (Some("personality"), None), "unexpected system call {name:?} for {arch:?}");
    }
    if let Some(expected) = fault.mach {
        let mach = crash.mach.as_ref().context("the report has no Mach exception")?;
        let right = mach.exception == expected.exception
            && expected.code.is_none_or(|code| mach.code == code)
            && expected.subcode.is_none_or(|subcode| mach.subcode == subcode);
        ensure!(
            right,
            "unexpected Mach exception {} ({}, {:#x}); expected {expected:?}",
            mach.exception,
            mach.code,
            mach.subcode
        );
    } else if let Some(address) = fault.address {
        ensure!(
            signal.address.is_some_and(|found| found.0 == address),
            "unexpected si_addr {:?}; expected {address:#x}",
            signal.address
        );
    }
    let overflows = fault.name.starts_with("stack-overflow");
    ensure!(
        crash.has(CrashFlag::StackOverflow) == overflows,
        "the report mentions {} about a stack overflow",
        if overflows { "nothing" } else { "something" }
    );
    let crashed = report.threads.iter().filter(|thread| thread.crashed).count();
    ensure!(
        crashed == 1 + crash.concurrent_crashes.len(),
        "{crashed} threads are marked as crashed; concurrent crashes: {:?}",
        crash.concurrent_crashes
    );
    if fault.name == "two-threads" {
        let both = report.threads.iter().filter(|thread| thread.name.as_deref() == Some(CRASHER));
        let count = both.filter(|thread| thread.registers.is_some() && !thread.frames.is_empty()).count();
        ensure!(count == 2, "the report has {count} of the two crashing threads");
    } else {
        ensure!(crashed == 1, "unexpected concurrent crash: {:?}", crash.concurrent_crashes);
    }
    Ok(())
}

fn thread_is_right(thread: &Thread, fault: &Fault) -> anyhow::Result<()> {
    match fault.thread {
        Where::Main => ensure!(thread.main, "thread {:?} crashed instead of the main thread", thread.name),
        Where::Crasher => {
            ensure!(thread.name.as_deref() == Some(CRASHER), "thread {:?} crashed instead of {CRASHER:?}", thread.name);
        }
    }
    let registers = thread.registers.as_ref().context("the crashed thread has no registers")?;
    let pc = registers.named().find(|(name, _)| ["rip", "pc"].contains(name)).context("no program counter")?.1;
    let first = thread.frames.first().context("the crashed thread has no frames")?;
    // A panic report's registers are those of Coroner's own frame, which is left out.
    ensure!(
        first.address.0 == pc || registers.only_preserved,
        "the first frame is {}, but the program counter is {pc:#x}",
        first.address
    );
    Ok(())
}

/// Returns all names of a frame, innermost first: inlined functions, then its own.
fn names(frame: &Frame) -> Vec<String> {
    let inlined = frame.inlined.iter().filter_map(|inlined| inlined.function.as_deref());
    inlined.chain(frame.function.as_deref()).map(last_part).collect()
}

/// Returns `function` for `a::b::function::h0123` and `a::b::function<T>`.
fn last_part(name: &str) -> String {
    let name = name.split(['<', '(']).next().unwrap_or_default().trim_end_matches("::");
    let mut parts = name.rsplit("::");
    let last = parts.next().unwrap_or_default();
    let is_hash = last.len() == 17 && last.starts_with('h') && last[1..].chars().all(|c| c.is_ascii_hexdigit());
    (if is_hash { parts.next().unwrap_or_default() } else { last }).to_owned()
}

fn frames_are_right(thread: &Thread, fault: &Fault) -> anyhow::Result<()> {
    let frames: Vec<Vec<String>> = thread.frames.iter().map(names).collect();
    let seen =
        || {
            let lines =
                thread.frames.iter().zip(&frames).take(20).map(|(frame, names)| {
                    format!("\n        {} {} {}", frame.address, names.join(" < "), frame.found_by)
                });
            lines.collect::<String>()
        };
    let first = fault.frames.first().context("the fault's entry has no frames")?;
    let in_first = frames.first().is_some_and(|names| names.iter().any(|name| name == first));
    match fault.top {
        Top::Function => ensure!(in_first, "the top frame is not {first}:{}", seen()),
        Top::Library => ensure!(!in_first, "the top frame is {first} instead of a callee:{}", seen()),
        Top::Nowhere => {
            ensure!(frames.first().is_some_and(Vec::is_empty), "the top frame has a name:{}", seen());
            let caller = frames.get(1).is_some_and(|names| names.iter().any(|name| name == first));
            ensure!(caller, "the top frame's caller is not {first}:{}", seen());
        }
    }
    let mut all = frames.iter().flatten();
    for wanted in fault.frames {
        ensure!(all.any(|name| name == wanted), "{wanted} is missing or out of order in the frames:{}", seen());
    }
    Ok(())
}

fn parked_threads_are_right(report: &Report, parked: usize) -> anyhow::Result<()> {
    let threads: Vec<&Thread> =
        report.threads.iter().filter(|thread| thread.name.as_deref() == Some(PARKED) && !thread.crashed).collect();
    // Faults that need a second thread park it themselves.
    ensure!(threads.len() >= parked, "parked threads: expected {parked}, got {}", threads.len());
    for thread in threads {
        let tid = thread.tid;
        if let Some(reason) = &thread.not_captured {
            bail!("parked thread {tid} was not captured: {reason}");
        }
        ensure!(thread.registers.is_some(), "parked thread {tid} has no registers");
        let depth = thread.frames.iter().filter(|frame| names(frame).iter().any(|name| name == "parked_frame")).count();
        ensure!(depth == PARKED_DEPTH as usize, "parked thread {tid} has {depth} of {PARKED_DEPTH} frames");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::last_part;

    #[test]
    fn names_are_shortened_to_their_last_part() {
        assert_eq!(last_part("coroner_faults::memory::null_store"), "null_store");
        assert_eq!(last_part("coroner_faults::memory::null_store::h0123456789abcdef"), "null_store");
        assert_eq!(last_part("a::b::<T>"), "b");
        assert_eq!(last_part("malloc"), "malloc");
    }
}
