//! The text form.

use coroner_process::registers::{AARCH64_NAMES, Arch, X86_64_NAMES};
use coroner_report::model::{Address, Frame, Problem, Registers, Thread};
use coroner_report::wire::{AddressKind, FoundBy};
use std::collections::HashMap;

use super::{MAX_FRAMES, MAX_THREADS, Parsed, thrown, time};
use crate::apple_report::images::{hexadecimal, lines};
use crate::apple_report::termination_codes;
use crate::apple_report::text::{Parts, is_placeholder, lists};

/// The section to which the current lines belong.
enum Below {
    /// `Key: value` lines.
    Header,
    /// A stack.
    Thread(usize),
    /// The stack of what was thrown.
    Thrown,
    /// Registers of the crashed thread.
    Registers,
    /// The section `Application Specific Information:`.
    Information(String),
    /// Another section, up to an empty line.
    Other,
}

pub(super) fn read(bytes: &[u8]) -> Parsed {
    let lists = lists(bytes);
    let mut parsed = Parsed { images: lists.images.clone(), ..Parsed::default() };
    let mut below = Below::Header;
    let mut values: HashMap<String, u64> = HashMap::new();
    let (mut thrown_frames, mut reason) = (Vec::new(), None);
    let mut names: HashMap<usize, (Option<String>, Option<String>)> = HashMap::new();
    let mut end = 0;
    for (start, line) in lines(bytes) {
        end = start + line.len();
        let trimmed = line.trim();
        if trimmed.is_empty() {
            below = Below::Header;
            continue;
        }
        if let Some((number, rest)) = thread_heading(line) {
            let title = names.entry(number).or_default();
            // `Thread 0 name:  Dispatch queue: com.apple.main-thread` is a separate line before the
            // heading.
            let (is_name, text) = match rest {
                Heading::Name(text) => (true, text),
                Heading::Stack { crashed, text } => {
                    if crashed {
                        parsed.crashed = Some(parsed.threads.len());
                    }
                    (false, text)
                }
                Heading::Registers => {
                    below = Below::Registers;
                    continue;
                }
            };
            match text.split_once("Dispatch queue: ") {
                Some((name, queue)) => {
                    title.1 = Some(queue.trim().to_owned());
                    title.0 = Some(name.trim().to_owned()).filter(|name| !name.is_empty()).or(title.0.take());
                }
                None if !text.is_empty() => title.0 = Some(text.to_owned()),
                None => {}
            }
            if !is_name && parsed.threads.len() < MAX_THREADS {
                let (name, queue) = title.clone();
                parsed.threads.push(Thread { tid: number as u64, name, queue, ..Thread::default() });
                below = Below::Thread(parsed.threads.len() - 1);
            }
            continue;
        }
        if trimmed == "Last Exception Backtrace:" || trimmed.starts_with("Application Specific Backtrace ") {
            below = Below::Thrown;
            continue;
        }
        if let Some(what) = trimmed.strip_suffix(':').filter(|what| what.starts_with("Application Specific")) {
            below = Below::Information(what.to_owned());
            continue;
        }
        match &below {
            Below::Header => {
                if !header(&mut parsed, trimmed) {
                    below = Below::Other;
                }
            }
            Below::Thread(place) => {
                let frames = &mut parsed.threads[*place].frames;
                if frames.len() < MAX_FRAMES {
                    frames.extend(frame(trimmed, frames.is_empty()));
                }
            }
            Below::Thrown if line.starts_with('(') => {
                let list = trimmed.trim_start_matches('(').trim_end_matches(')');
                let addresses = list.split_whitespace().filter_map(hexadecimal).take(MAX_FRAMES);
                thrown_frames.extend(addresses.map(|address| at(address, false)));
            }
            Below::Thrown if thrown_frames.len() < MAX_FRAMES => thrown_frames.extend(frame(trimmed, false)),
            Below::Registers => registers(trimmed, &mut values),
            Below::Information(what) => {
                let text = trimmed.to_owned();
                if is_uncaught(&text) {
                    reason = Some(text.clone());
                }
                let what = what.clone();
                match parsed.annotations.last_mut().filter(|last| last.source == what) {
                    Some(last) if last.text.len() < 1 << 16 => {
                        last.text.push('\n');
                        last.text.push_str(&text);
                    }
                    Some(_) => {}
                    None => parsed.annotate(&what, text),
                }
            }
            Below::Thrown | Below::Other => {}
        }
    }
    if parsed.is_arm64.is_none() {
        parsed.is_arm64 = Some(values.contains_key("pc"));
    }
    order_versions(&mut parsed, bytes);
    parsed.annotate_exception(None);
    let crashed = parsed.crashed.unwrap_or_default();
    let found = parsed.arch().and_then(|arch| general(arch, &values));
    if let Some(thread) = parsed.threads.get_mut(crashed) {
        thread.registers = found;
    }
    if !thrown_frames.is_empty() || reason.is_some() {
        let (name, message) = reason.as_deref().map_or((None, None), name_and_reason);
        parsed.thrown = Some(thrown(name, message, thrown_frames));
    }
    if lists.images.iter().all(|image| image.debug_id.is_none()) {
        let what = "the report has no list of images with ids: no symbol file can be matched to them".to_owned();
        parsed.problems.push(Problem { section: None, offset: end as u64, what });
    }
    parsed
}

/// The first line of an `.ips` with a report in text.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct FirstLine {
    app_version: Option<String>,
    build_version: Option<String>,
}

/// Exchanges version and build where the report has them in the order of older systems.
///
/// iOS 15 and macOS write `1.2 (34)`, iOS 14 and earlier `34 (1.2)`. The line of JSON decides, if
/// there is one.
fn order_versions(parsed: &mut Parsed, bytes: &[u8]) {
    let first = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let heading: FirstLine = serde_json::from_slice(first).unwrap_or_default();
    if let (Some(version), Some(build)) = (heading.app_version, heading.build_version) {
        (parsed.version, parsed.build) = (Some(version), Some(build));
        return;
    }
    let os = parsed.os.as_deref().unwrap_or_default();
    let version = ["iPhone OS ", "iOS ", "iPadOS ", "Apple TVOS "].iter().find_map(|name| os.strip_prefix(name));
    let major: Option<u32> = version.and_then(|version| version.split(['.', ' ']).next()?.parse().ok());
    if major.is_some_and(|major| major < 15) && parsed.build.is_some() {
        std::mem::swap(&mut parsed.version, &mut parsed.build);
    }
}

enum Heading<'t> {
    Name(&'t str),
    Stack { crashed: bool, text: &'t str },
    Registers,
}

/// Parses `Thread 0 Crashed:: Dispatch queue: …`, `Thread 3:`, `Thread 3 name:  worker`, `Thread 0
/// crashed with ARM Thread State (64-bit):`.
fn thread_heading(line: &str) -> Option<(usize, Heading<'_>)> {
    let rest = line.strip_prefix("Thread ")?;
    let end = rest.find(|digit: char| !digit.is_ascii_digit())?;
    let (number, rest) = rest.split_at(end);
    let number = number.parse().ok()?;
    if rest.contains(" State") {
        return Some((number, Heading::Registers));
    }
    if let Some(name) = rest.strip_prefix(" name:") {
        return Some((number, Heading::Name(name.trim())));
    }
    let crashed = rest.starts_with(" Crashed") || rest.starts_with(" Highlighted");
    let (_, text) = rest.split_once(':')?;
    Some((number, Heading::Stack { crashed, text: text.trim_start_matches(':').trim() }))
}

/// Parses a line `Key: value`; returns `false` for other lines.
fn header(parsed: &mut Parsed, line: &str) -> bool {
    // The header of a translated report may follow its title without an empty line.
    if line.starts_with("Translated Report") || line.bytes().all(|byte| byte == b'-') {
        return true;
    }
    let Some((key, value)) = line.split_once(':') else { return false };
    let value = value.trim();
    let text = || Some(value.to_owned()).filter(|value| !value.is_empty() && value != "???");
    // `App [1234]`, `launchd [1]`.
    let process = || {
        let (name, pid) = value.rsplit_once(" [").unwrap_or((value, ""));
        (name.to_owned(), pid.trim_end_matches(']').parse().unwrap_or_default())
    };
    match key {
        "Incident Identifier" => parsed.incident = text(),
        "Hardware Model" => parsed.hardware = text(),
        "Process" => (parsed.process_name, parsed.pid) = process(),
        "Path" => parsed.path = text(),
        "Identifier" => parsed.bundle_id = text(),
        "Version" => {
            let (version, build) = value.split_once(" (").unwrap_or((value, ""));
            let known = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty() && text != "???");
            (parsed.version, parsed.build) = (known(version), known(build.trim_end_matches(')')));
        }
        "Code Type" if value.starts_with("ARM-64") => parsed.is_arm64 = Some(true),
        "Code Type" if value.starts_with("X86-64") => parsed.is_arm64 = Some(false),
        "Parent Process" => parsed.parent_pid = process().1,
        "Date/Time" => parsed.time = time(value),
        "Launch Time" => parsed.start = time(value),
        "OS Version" => parsed.os = text(),
        "Exception Type" => {
            // `EXC_BAD_ACCESS (SIGSEGV)`; PLCrashReporter writes the signal alone.
            let (name, signal) = value.split_once(" (").unwrap_or((value, ""));
            let (name, signal) = if name.starts_with("SIG") { ("", name) } else { (name, signal) };
            parsed.exception = Some(name.trim().to_owned()).filter(|name| !name.is_empty());
            parsed.signal = Some(signal.trim_end_matches(')').to_owned());
        }
        "Exception Subtype" => parsed.subtype = text(),
        "Exception Message" | "Exception Note" if value != "EXC_CORPSE_NOTIFY" => parsed.annotate(key, value),
        "VM Region Info" => parsed.annotate("VM region", value),
        "Exception Codes" => {
            let codes = value.split(',').map(|code| hexadecimal(code.trim()));
            match codes.collect::<Option<Vec<u64>>>() {
                Some(codes) => parsed.codes = codes.into_iter().map(|code| code as i64).take(4).collect(),
                None => parsed.subtype = text(),
            }
        }
        "Termination Reason" => parsed.annotate(key, termination_codes::explain(value)),
        "Termination Description" | "Termination Signal" => parsed.annotate(key, value),
        _ => {}
    }
    true
}

/// Parses a line of a stack.
pub(super) fn frame(line: &str, is_innermost: bool) -> Option<Frame> {
    let Parts { image, address, rest, .. } = Parts::parse(line)?;
    let mut frame = at(address, is_innermost);
    if is_placeholder(rest, image) {
        return Some(frame);
    }
    // `name + 20 (file.m:12)`, `name + 20`, `name (file.m:12)`.
    let (named, source) = match rest.rsplit_once(" (").filter(|_| rest.ends_with(')')) {
        Some((named, source)) => (named, source.strip_suffix(')').and_then(|source| source.rsplit_once(':'))),
        None => (rest, None),
    };
    let source = source.and_then(|(file, line)| Some((file, line.parse().ok()?)));
    let named = if source.is_some() { named } else { rest };
    let offset = named.rsplit_once(" + ").and_then(|(name, offset)| Some((name, offset.parse::<u64>().ok()?)));
    frame.function = Some(offset.map_or(named, |(name, _)| name).to_owned());
    frame.symbol_address = offset.map(|(_, offset)| Address(address.wrapping_sub(offset)));
    if let Some((file, line)) = source {
        (frame.file, frame.line) = (Some(file.to_owned()), Some(line));
    }
    Some(frame)
}

fn at(address: u64, is_innermost: bool) -> Frame {
    Frame {
        address: Address(address),
        found_by: if is_innermost { FoundBy::CONTEXT } else { FoundBy::CFI },
        address_kind: if is_innermost { AddressKind::INSTRUCTION } else { AddressKind::RETURN },
        ..Frame::default()
    }
}

/// Parses `x0: 0x0000000000000000   x1: 0x…`.
fn registers(line: &str, values: &mut HashMap<String, u64>) {
    let mut words = line.split_whitespace().peekable();
    while let Some(word) = words.next() {
        if let (Some(name), Some(value)) = (word.strip_suffix(':'), words.peek().copied().and_then(hexadecimal))
            && values.len() < 256
        {
            values.insert(name.to_owned(), value);
        }
    }
}

fn general(arch: Arch, values: &HashMap<String, u64>) -> Option<Registers> {
    let value = |name: &&str| values.get(*name).copied();
    let general: Option<Vec<u64>> = match arch {
        Arch::X86_64 => X86_64_NAMES.iter().chain(&["rip", "rfl"]).map(value).collect(),
        Arch::Aarch64 => {
            let own = |name: &&str| match *name {
                "fp" => value(name).or_else(|| value(&"x29")),
                "lr" => value(name).or_else(|| value(&"x30")),
                _ => value(name),
            };
            AARCH64_NAMES.iter().chain(&["sp", "pc", "cpsr"]).map(own).collect()
        }
    };
    Some(Registers { arch: Some(arch), general: general?, ..Registers::default() })
}

/// Whether a text is the system's line about an uncaught exception.
///
/// `*** Terminating app due to uncaught exception 'NSRangeException', reason: '…'`.
pub(super) fn is_uncaught(text: &str) -> bool {
    text.starts_with("*** Terminating app due to uncaught exception")
}

/// Returns name and reason of an uncaught exception.
pub(super) fn name_and_reason(text: &str) -> (Option<String>, Option<String>) {
    let mut quoted = text.splitn(3, '\'');
    let name = quoted.nth(1).map(ToOwned::to_owned);
    let reason = quoted.next().and_then(|rest| rest.split_once("reason: '")).map(|(_, reason)| reason);
    (name, reason.map(|reason| reason.trim_end_matches('\'').to_owned()))
}
