//! Reads the fatal errors of a Java virtual machine: its `hs_err_pid….log`, or the part that it
//! prints.
//!
//! ```text
//! # A fatal error has been detected by the Java Runtime Environment:
//! #
//! #  SIGSEGV (0xb) at pc=0x00007f6ba90364ad, pid=21207, tid=21208
//! #
//! # Problematic frame:
//! # V  [libjvm.so+0x12364ad]  Unsafe_PutInt+0xad
//! …
//! Current thread (0x00007f6ba002a900):  JavaThread "main"  [_thread_in_vm, id=21208, …]
//! Native frames: (J=compiled Java code, j=interpreted, Vv=VM code, C=native code)
//! V  [libjvm.so+0x12364ad]  Unsafe_PutInt+0xad
//! j  Crash.main([Ljava/lang/String;)V+23
//! siginfo: si_signo: 11 (SIGSEGV), si_code: 1 (SEGV_MAPERR), si_addr: 0x0000000000000000
//! ```
//!
//! Source: `share/utilities/vmError.cpp` of OpenJDK.

use coroner_report::model::{Address, Crash, Exception, Frame, Signal, Thread, signal_code_name, signal_name};
use coroner_report::wire::{FoundBy, Language, Monitor, Os};

use super::lines::Lines;
use super::{Death, Found, MAX_FRAMES, MAX_LINES, address};

const HEADS: [&str; 2] = [
    "# A fatal error has been detected by the Java Runtime Environment:",
    "# There is insufficient memory for the Java Runtime Environment to continue.",
];

pub(super) fn head(line: &str) -> Option<usize> {
    HEADS.iter().find_map(|head| line.find(head))
}

pub(super) fn read(mut lines: Lines<'_>) -> Option<Found<'_>> {
    let first = lines.next()?;
    let mut crash = Crash { monitor: Monitor::SIGNAL, ..Crash::default() };
    let (mut pid, mut message) = (None, None);
    let mut thread = Thread { crashed: true, ..Thread::default() };
    let (mut problematic, mut in_stack) = (None, false);
    let mut is_problematic = false;
    if first.text.contains("insufficient memory") {
        message = Some("insufficient memory".to_owned());
    }
    for _ in 0..MAX_LINES {
        let before = lines;
        let Some(line) = lines.next() else { break };
        if head(&line.text).is_some() {
            lines = before;
            break;
        }
        let text = line.text.trim_end();
        let heading = text.strip_prefix('#').map(str::trim);
        if let Some(heading) = heading {
            if std::mem::take(&mut is_problematic) {
                problematic = frame(heading, true);
            }
            is_problematic = heading == "Problematic frame:";
            if let Some((what, ids)) = heading.split_once(", pid=") {
                pid = number(ids);
                thread.tid = ids.split_once("tid=").and_then(|(_, tid)| number(tid)).unwrap_or_default();
                crash.signal = signal(what);
                if crash.signal.is_none() {
                    message = Some(what.to_owned());
                }
            } else if message.is_some() && (heading.starts_with("Error: ") || heading.starts_with("guarantee(")) {
                message = Some(heading.to_owned());
            }
            continue;
        }
        if let Some(named) = text.strip_prefix("Current thread (").and_then(|rest| rest.split_once('"')) {
            thread.name = named.1.split_once('"').map(|(name, _)| name.to_owned());
        } else if text.starts_with("Native frames:") || (text.starts_with("Java frames:") && thread.frames.is_empty()) {
            in_stack = true;
        } else if let Some(info) = text.strip_prefix("siginfo: ") {
            siginfo(info, &mut crash);
        } else if in_stack {
            match frame(text, thread.frames.is_empty()) {
                Some(frame) if thread.frames.len() < MAX_FRAMES => thread.frames.push(frame),
                Some(_) => {}
                None => in_stack = false,
            }
        }
        if text == "END." {
            break;
        }
    }
    let problem = thread.frames.is_empty().then(|| format!("after line {}: the text has no stack", first.number));
    if thread.frames.is_empty() {
        thread.frames.extend(problematic);
    }
    (crash.tid, crash.message) = (thread.tid, message.clone());
    let exceptions = message.map(|message| Exception {
        language: Language::JAVA,
        type_name: Some("fatal error of the Java virtual machine".to_owned()),
        message: Some(message),
        tid: thread.tid,
        frames: thread.frames.clone(),
        ..Exception::default()
    });
    let exceptions = exceptions.into_iter().collect();
    let death = Death { crash, pid, exceptions, threads: vec![thread], problem, ..Death::default() };
    Some(Found { death, rest: lines })
}

fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.split(|digit: char| !digit.is_ascii_digit()).next()?.parse().ok()
}

/// Parses `SIGSEGV (0xb) at pc=0x00007f6ba90364ad`.
fn signal(text: &str) -> Option<Signal> {
    let name = text.split_whitespace().next()?;
    let number = (1..32).find(|number| signal_name(Os::NATIVE, *number) == Some(name))?;
    Some(Signal { number, name: signal_name(Os::NATIVE, number), ..Signal::default() })
}

/// Parses `si_signo: 11 (SIGSEGV), si_code: 1 (SEGV_MAPERR), si_addr: 0x0000000000000000`.
fn siginfo(info: &str, crash: &mut Crash) {
    let Some(signal) = &mut crash.signal else { return };
    if let Some(code) = info.split_once("si_code: ").and_then(|(_, code)| number(code)) {
        (signal.code, signal.code_name) = (code, signal_code_name(Os::NATIVE, signal.number, code));
    }
    signal.address = info.split_once("si_addr: ").and_then(|(_, at)| address(at)).map(|found| Address(found.0));
    crash.address = signal.address;
}

/// Parses a line of a stack: a letter for the kind of code, then a place in a library with a name,
/// or a Java method.
fn frame(text: &str, is_first: bool) -> Option<Frame> {
    let (kind, rest) = text.split_once(' ')?;
    let is_native = matches!(kind, "C" | "V" | "v");
    if !is_native && !matches!(kind, "j" | "J" | "A") {
        return None;
    }
    let rest = rest.trim();
    let found_by = if is_first { FoundBy::CONTEXT } else { FoundBy::FRAME_POINTER };
    let mut frame = Frame { found_by, in_app: Some(kind == "C" || kind == "j" || kind == "J"), ..Frame::default() };
    if let Some(place) = rest.strip_prefix('[') {
        let (module, name) = place.split_once(']')?;
        let (module, offset) = module.rsplit_once("+0x").unwrap_or((module, ""));
        frame.module = Some(module.to_owned());
        let name = name.trim();
        let name = name.rsplit_once("+0x").map_or(name, |(name, _)| name);
        let offset = || (!offset.is_empty()).then(|| format!("+0x{offset}"));
        frame.function = Some(name.to_owned()).filter(|name| !name.is_empty()).or_else(offset);
        let is_systems = ["libjvm.so", "libjli.so", "libjava.so", "libc.so", "libpthread.so"];
        frame.in_app = Some(kind == "C" && !is_systems.iter().any(|system| module.starts_with(system)));
        return Some(frame);
    }
    frame.module = Some(Language::JAVA.to_string());
    // `J 123 c2 com.example.Shop.pay(I)V (12 bytes) @ 0x…`, `j  com.example.Shop.pay(I)V+23`.
    let method = rest.split_whitespace().find(|word| word.contains('(') || word.starts_with('~')).unwrap_or(rest);
    let name = method.split('(').next().unwrap_or(method);
    let is_runtime = ["java.", "javax.", "jdk.", "sun.", "com.sun.", "~"].iter().any(|own| name.starts_with(own));
    frame.function = Some(name.to_owned());
    frame.in_app = Some(!is_runtime && kind != "v");
    if !is_first {
        frame.found_by = FoundBy::MANAGED;
    }
    Some(frame)
}
