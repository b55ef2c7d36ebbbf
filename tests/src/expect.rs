//! Holding a report to what the table of faults says of it.

use anyhow::{Context, bail, ensure};
use coroner_faults::threads::{CRASHER, PARKED, PARKED_DEPTH};
use coroner_faults::{Ending, Fault, Mach, Thread as Where, Top};
use coroner_report::model::{CrashFlag, Frame, Report, Thread};
use coroner_report::wire::Monitor;

/// Everything that a report of `fault` must say, with so many threads parked meanwhile.
///
/// # Errors
/// The first thing that is wrong.
pub fn report_is_right(report: &Report, fault: &Fault, parked: usize) -> anyhow::Result<()> {
    ensure!(report.complete, "it is not complete: {:?}", report.problems);
    ensure!(report.end.is_some(), "it has no end");
    ensure!(!report.images.is_empty(), "it has no images");
    signal_is_right(report, fault)?;
    abort_message_is_right(report, fault)?;
    let thread = report.crashed_thread().context("no thread of it crashed")?;
    thread_is_right(thread, fault)?;
    frames_are_right(thread, fault)?;
    parked_threads_are_right(report, parked)
}

/// What a report must say of `fault` even where neither the program nor its stack can be read: what happened, and the registers of
/// the thread that it happened to.
///
/// # Errors
/// The first thing that is wrong.
pub fn signal_and_registers_are_right(report: &Report, fault: &Fault) -> anyhow::Result<()> {
    signal_is_right(report, fault)?;
    let crash = report.crash.as_ref().context("it does not say what happened")?;
    let thread = report.crashed_thread().context("no thread of it crashed")?;
    ensure!(thread.tid == crash.tid, "thread {} crashed, and {} is marked", crash.tid, thread.tid);
    let registers = thread.registers.as_ref().context("the crashed thread has no registers")?;
    let has = |names: [&str; 2]| registers.named().any(|(name, value)| names.contains(&name) && value != 0);
    ensure!(has(["rip", "pc"]) && has(["rsp", "sp"]), "the crashed thread has no program counter or no stack pointer");
    Ok(())
}

/// What the C library says of faults that it notices. On Darwin the sender of the signal is all that is known of them.
fn abort_message_is_right(report: &Report, fault: &Fault) -> anyhow::Result<()> {
    let android = cfg!(target_os = "android");
    if !android && !cfg!(all(target_os = "linux", target_env = "gnu")) {
        return Ok(());
    }
    let expected = match fault.name {
        // Of gcc's glibc and of bionic.
        "assert" if android => "assertion \"patient->alive\" failed",
        "assert" => "assert_here: Assertion `patient->alive' failed.",
        "fortify" if android => "FORTIFY: memcpy: prevented 16-byte write into 8-byte buffer",
        "fortify" => "*** buffer overflow detected ***: terminated",
        "double-free" => "free(): double free detected",
        "abort-in-malloc" => "malloc(): invalid size (unsorted)",
        _ => {
            ensure!(report.annotations.is_empty(), "it has annotations: {:?}", report.annotations);
            return Ok(());
        }
    };
    let said = report.abort_message().context("it has no abort message")?;
    ensure!(said.contains(expected), "its abort message is {said:?} and not {expected:?}");
    Ok(())
}

fn signal_is_right(report: &Report, fault: &Fault) -> anyhow::Result<()> {
    let crash = report.crash.as_ref().context("it does not say what happened")?;
    if fault.name == "panic-abort" {
        // Reported by the panic hook, before there is a signal.
        ensure!(crash.monitor == Monitor::PANIC, "it is of {} and not of a panic", crash.monitor);
        ensure!(crash.signal.is_none() && crash.message.is_some(), "it has a signal, or no message");
        ensure!(report.exceptions.len() == 1, "it has {} exceptions", report.exceptions.len());
        return Ok(());
    }
    let signal = crash.signal.as_ref().context("it has no signal")?;
    let expected = match fault.ending {
        // Rust's own handler aborts after the fact; the report is of the fault.
        Ending::Signal(number) | Ending::Child(number) | Ending::Either(_, number) => number,
    };
    // What the exception says. The kernel also looks at the address: of the main thread's stack it makes a SIGSEGV.
    let expected = fault.mach.and_then(Mach::signal_of_denial).unwrap_or(expected);
    ensure!(signal.number == expected, "it is of signal {} and not {expected}", signal.number);
    if let Some(code) = fault.code {
        ensure!(signal.code == code, "its si_code is {} and not {code}", signal.code);
    }
    if fault.name == "bad-system-call" {
        let (name, arch) = (signal.syscall_name, signal.syscall_arch);
        ensure!((name, arch) == (Some("personality"), None), "its system call is {name:?} of {arch:?}");
    }
    if let Some(expected) = fault.mach {
        let mach = crash.mach.as_ref().context("it has no Mach exception")?;
        let right = mach.exception == expected.exception
            && expected.code.is_none_or(|code| mach.code == code)
            && expected.subcode.is_none_or(|subcode| mach.subcode == subcode);
        ensure!(
            right,
            "its Mach exception is {} ({}, {:#x}), not {expected:?}",
            mach.exception,
            mach.code,
            mach.subcode
        );
    } else if let Some(address) = fault.address {
        ensure!(
            signal.address.is_some_and(|found| found.0 == address),
            "its si_addr is {:?} and not {address:#x}",
            signal.address
        );
    }
    let overflows = fault.name.starts_with("stack-overflow");
    ensure!(
        crash.has(CrashFlag::StackOverflow) == overflows,
        "it says {} of a stack overflow",
        if overflows { "nothing" } else { "something" }
    );
    let crashed = report.threads.iter().filter(|thread| thread.crashed).count();
    ensure!(
        crashed == 1 + crash.concurrent_crashes.len(),
        "{crashed} of its threads crashed, and its concurrent crashes are {:?}",
        crash.concurrent_crashes
    );
    if fault.name == "two-threads" {
        let both = report.threads.iter().filter(|thread| thread.name.as_deref() == Some(CRASHER));
        let count = both.filter(|thread| thread.registers.is_some() && !thread.frames.is_empty()).count();
        ensure!(count == 2, "{count} of the two threads that were to crash are in it");
    } else {
        ensure!(crashed == 1, "it has a concurrent crash: {:?}", crash.concurrent_crashes);
    }
    Ok(())
}

fn thread_is_right(thread: &Thread, fault: &Fault) -> anyhow::Result<()> {
    match fault.thread {
        Where::Main => ensure!(thread.main, "thread {:?} crashed and not the main one", thread.name),
        Where::Crasher => {
            ensure!(thread.name.as_deref() == Some(CRASHER), "thread {:?} crashed and not {CRASHER:?}", thread.name);
        }
    }
    let registers = thread.registers.as_ref().context("the crashed thread has no registers")?;
    let pc = registers.named().find(|(name, _)| ["rip", "pc"].contains(name)).context("no program counter")?.1;
    let first = thread.frames.first().context("the crashed thread has no frames")?;
    // The registers of a panic's report are those of Coroner's own frame, which is left out.
    ensure!(
        first.address.0 == pc || registers.only_preserved,
        "its first frame is {} but its program counter {pc:#x}",
        first.address
    );
    Ok(())
}

/// All names of a frame, innermost first: functions inlined into it, then its own.
fn names(frame: &Frame) -> Vec<String> {
    let inlined = frame.inlined.iter().filter_map(|inlined| inlined.function.as_deref());
    inlined.chain(frame.function.as_deref()).map(last_part).collect()
}

/// `a::b::function::h0123` and `a::b::function<T>` as `function`.
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
    let first = fault.frames.first().context("the table says no frames")?;
    let in_first = frames.first().is_some_and(|names| names.iter().any(|name| name == first));
    match fault.top {
        Top::Function => ensure!(in_first, "its top frame is not {first}:{}", seen()),
        Top::Library => ensure!(!in_first, "its top frame is {first} and not below it:{}", seen()),
        Top::Nowhere => {
            ensure!(frames.first().is_some_and(Vec::is_empty), "its top frame has a name:{}", seen());
            let caller = frames.get(1).is_some_and(|names| names.iter().any(|name| name == first));
            ensure!(caller, "the caller of its top frame is not {first}:{}", seen());
        }
    }
    let mut all = frames.iter().flatten();
    for wanted in fault.frames {
        ensure!(all.any(|name| name == wanted), "{wanted} is not among its frames, in order:{}", seen());
    }
    Ok(())
}

fn parked_threads_are_right(report: &Report, parked: usize) -> anyhow::Result<()> {
    let threads: Vec<&Thread> =
        report.threads.iter().filter(|thread| thread.name.as_deref() == Some(PARKED) && !thread.crashed).collect();
    // Faults that need a second thread park one themselves.
    ensure!(threads.len() >= parked, "{} parked threads are in it and not {parked}", threads.len());
    for thread in threads {
        let tid = thread.tid;
        if let Some(reason) = &thread.not_captured {
            bail!("parked thread {tid} is not captured: {reason}");
        }
        ensure!(thread.registers.is_some(), "parked thread {tid} has no registers");
        let depth = thread.frames.iter().filter(|frame| names(frame).iter().any(|name| name == "parked_frame")).count();
        ensure!(depth == PARKED_DEPTH as usize, "parked thread {tid} has {depth} frames of {PARKED_DEPTH}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::last_part;

    #[test]
    fn names_are_shortened() {
        assert_eq!(last_part("coroner_faults::memory::null_store"), "null_store");
        assert_eq!(last_part("coroner_faults::memory::null_store::h0123456789abcdef"), "null_store");
        assert_eq!(last_part("a::b::<T>"), "b");
        assert_eq!(last_part("malloc"), "malloc");
    }
}
