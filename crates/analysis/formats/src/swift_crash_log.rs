//! Reads crash logs of Swift's runtime in JSON.
//!
//! They are the output of `swift-backtrace` with `SWIFT_BACKTRACE=format=json` (Swift 6.2), and of
//! `CrashLog` in the module `Runtime`.
//!
//! A log is one object; the program's own output may come before and after it. Source of the
//! format: swiftlang/swift, stdlib/public/RuntimeModule/CrashLog.swift and
//! BacktraceJSONFormatter.swift.

use coroner_process::registers::Arch;
use coroner_report::Report;
use coroner_report::model::{
    Address, Bytes, Crash, Frame, Header, Image, InlinedFrame, Registers, Signal, Skipped, TextRange, Thread,
    Timestamp, signal_name,
};
use coroner_report::wire::{AddressKind, CaptureMethod, FORMAT_VERSION, FoundBy, ImageKind, Monitor, Os};
use serde::Deserialize;
use std::collections::BTreeMap;

use crate::content_id;

/// Maximum size of a log, in bytes.
const MAX_BYTES: usize = 256 << 20;
/// Maximum number of threads, of a thread's frames, and of images.
const MAX_THREADS: usize = 16_384;
const MAX_FRAMES: usize = 65_536;
const MAX_IMAGES: usize = 16_384;
/// Maximum number of bytes between the object's start and the word by which it is found.
const MAX_BEFORE: usize = 4096;

/// The reason why a Swift crash log can't be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SwiftCrashLogError {
    /// The log is too large.
    #[error("the Swift crash log is {size} bytes; the limit is {} MiB", MAX_BYTES >> 20)]
    TooLarge {
        /// Its size, in bytes.
        size: usize,
    },
    /// The object is truncated or has another structure.
    #[error("the Swift crash log at byte {offset} is damaged or truncated: {error}")]
    Damaged {
        /// The object's offset in the file.
        offset: usize,
        /// The error; lines and columns are counted from that offset.
        error: serde_json::Error,
    },
    /// A string that should contain a number doesn't.
    #[error("invalid {what} in the Swift crash log: expected a 64-bit hexadecimal number, got {text:?}")]
    NoNumber {
        /// The field.
        what: &'static str,
        /// The field's content.
        text: String,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CrashLog {
    timestamp: String,
    description: String,
    fault_address: String,
    platform: String,
    architecture: String,
    threads: Vec<LogThread>,
    #[serde(default)]
    images: Option<Vec<LogImage>>,
    #[serde(default)]
    omitted_threads: u64,
}

#[derive(Deserialize)]
struct LogThread {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    crashed: bool,
    #[serde(default)]
    registers: BTreeMap<String, String>,
    frames: Vec<LogFrame>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LogFrame {
    kind: String,
    #[serde(default)]
    address: Option<String>,
    #[serde(default)]
    count: u64,
    #[serde(default)]
    symbol: Option<String>,
    #[serde(default)]
    offset: i64,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    image: Option<String>,
    #[serde(default)]
    source_location: Option<LogPlace>,
    #[serde(default)]
    inlined: bool,
    #[serde(default)]
    system: bool,
    #[serde(default)]
    runtime_failure: bool,
}

#[derive(Deserialize)]
struct LogPlace {
    file: String,
    line: u32,
    column: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LogImage {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    build_id: Option<String>,
    #[serde(default)]
    path: Option<String>,
    base_address: String,
    end_of_text: String,
}

/// Returns the object's offset: before `"kind": "crashReport"`, with only the time in between.
fn start(bytes: &[u8]) -> Option<usize> {
    const KIND: &[u8] = b"\"crashReport\"";
    let word = bytes.windows(KIND.len()).position(|window| window == KIND)?;
    let before = &bytes[word.saturating_sub(MAX_BEFORE)..word];
    let begin = before.iter().rposition(|byte| *byte == b'{')?;
    let between = before.get(begin..)?;
    let has = |key: &[u8]| between.windows(key.len()).any(|window| window == key);
    (has(b"\"timestamp\"") && has(b"\"kind\"")).then_some(word - before.len() + begin)
}

/// Whether a file contains a Swift crash log.
pub fn is_swift_crash_log(bytes: &[u8]) -> bool {
    start(bytes).is_some()
}

/// Reads the first Swift crash log in a file; `None` if it contains none.
///
/// # Errors
/// [`SwiftCrashLogError`] if the log is truncated or malformed.
pub fn read_swift_crash_log(bytes: &[u8]) -> Option<Result<Report, SwiftCrashLogError>> {
    let offset = start(bytes)?;
    if bytes.len() > MAX_BYTES {
        return Some(Err(SwiftCrashLogError::TooLarge { size: bytes.len() }));
    }
    let mut objects = serde_json::Deserializer::from_slice(&bytes[offset..]).into_iter::<CrashLog>();
    let read = match objects.next()? {
        Ok(log) => report(log, &bytes[offset..offset + objects.byte_offset()]),
        Err(error) => Err(SwiftCrashLogError::Damaged { offset, error }),
    };
    Some(read)
}

/// Parses `0x` and hexadecimal digits.
fn number(what: &'static str, text: &str) -> Result<u64, SwiftCrashLogError> {
    let digits = text.strip_prefix("0x").filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
    let number = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    number.ok_or_else(|| SwiftCrashLogError::NoNumber { what, text: text.to_owned() })
}

fn report(log: CrashLog, text: &[u8]) -> Result<Report, SwiftCrashLogError> {
    let arch = match log.architecture.as_str() {
        "x86_64" => Some(Arch::X86_64),
        "arm64" | "arm64e" => Some(Arch::Aarch64),
        _ => None,
    };
    let os = os_of(&log.platform);
    let time: Timestamp = log.timestamp.parse().unwrap_or_default();
    let mut threads = Vec::new();
    let mut tid = 0;
    for (index, thread) in log.threads.into_iter().take(MAX_THREADS).enumerate() {
        // The threads have no ids: they are numbered.
        let number = index as u64 + 1;
        if thread.crashed && tid == 0 {
            tid = number;
        }
        threads.push(thread_of(thread, number, arch)?);
    }
    let mut images = Vec::new();
    for image in log.images.into_iter().flatten().take(MAX_IMAGES) {
        images.push(image_of(image, os)?);
    }
    let address = Address(number("faultAddress", &log.fault_address)?);
    let signal = signal_of(&log.description, os);
    let mut report = Report {
        complete: log.omitted_threads == 0,
        header: Header { format_version: FORMAT_VERSION, event_id: content_id([text]), arch, os, ..Header::default() },
        crash: Some(Crash {
            time,
            monitor: Monitor::SIGNAL,
            tid,
            address: signal.as_ref().is_some_and(has_address).then_some(address),
            signal,
            message: Some(log.description).filter(|text| !text.is_empty()),
            ..Crash::default()
        }),
        threads,
        images,
        ..Report::default()
    };
    report.attribute_frames();
    Ok(report)
}

fn os_of(platform: &str) -> Os {
    match platform.split([' ', '(']).next().unwrap_or_default() {
        "macOS" => Os::MACOS,
        "iOS" => Os::IOS,
        "tvOS" => Os::TVOS,
        "watchOS" => Os::WATCHOS,
        "visionOS" => Os::VISIONOS,
        "Android" => Os::ANDROID,
        _ => Os::LINUX,
    }
}

/// Returns the signal in the description (swift-backtrace, Target…, `signalDescription`).
fn signal_of(description: &str, os: Os) -> Option<Signal> {
    let bus = if matches!(os, Os::LINUX | Os::ANDROID) { 7 } else { 10 };
    let said = [
        ("Terminated", 3),
        ("Illegal instruction", 4),
        ("System trap", 5),
        ("Aborted", 6),
        ("Floating point exception", 8),
        ("Bus error", bus),
        ("Bad pointer dereference", 11),
    ];
    let number = said.iter().find(|(words, _)| description.contains(words)).map(|(_, number)| *number)?;
    Some(Signal { number, name: signal_name(os, number), ..Signal::default() })
}

/// Whether a log's address is that of a fault; for other signals it is the program counter, or 0.
fn has_address(signal: &Signal) -> bool {
    matches!(signal.name, Some("SIGSEGV" | "SIGBUS"))
}

fn thread_of(thread: LogThread, tid: u64, arch: Option<Arch>) -> Result<Thread, SwiftCrashLogError> {
    let mut frames: Vec<Frame> = Vec::new();
    let mut skipped: Vec<Skipped> = Vec::new();
    // Inlined calls come before the function that contains them.
    let mut inlined: Vec<InlinedFrame> = Vec::new();
    for frame in thread.frames.into_iter().take(MAX_FRAMES) {
        let address_kind = match frame.kind.as_str() {
            "programCounter" => AddressKind::INSTRUCTION,
            "returnAddress" => AddressKind::RETURN,
            "asyncResumePoint" => AddressKind::ASYNC_RESUME,
            kind => {
                // It is unknown how many frames are missing from a truncated stack.
                let count = if kind == "omittedFrames" { frame.count } else { 0 };
                skipped.push(Skipped { after: frames.len(), count });
                continue;
            }
        };
        let address = Address(number("frame address", frame.address.as_deref().unwrap_or_default())?);
        let is_known = |text: &String| text != "<unknown>";
        let symbol = frame.symbol.filter(is_known);
        let description = frame.description.filter(is_known);
        let function = description.as_deref().map(without_offset).or(symbol.as_deref()).map(str::to_owned);
        // Compiler-generated code has the file `//<compiler-generated>` and the line 0.
        let (file, line, column) = match frame.source_location.filter(|place| place.line != 0) {
            Some(place) => (Some(place.file), Some(place.line), Some(place.column).filter(|column| *column != 0)),
            None => (None, None, None),
        };
        if frame.inlined {
            inlined.push(InlinedFrame { function, raw_function: symbol, file, line, column });
            continue;
        }
        let start = u64::try_from(frame.offset).ok().and_then(|offset| address.0.checked_sub(offset));
        frames.push(Frame {
            address,
            address_kind,
            found_by: if address_kind == AddressKind::INSTRUCTION { FoundBy::CONTEXT } else { FoundBy::default() },
            module: frame.image,
            function,
            symbol_address: start.filter(|_| symbol.is_some()).map(Address),
            raw_function: symbol,
            file,
            line,
            column,
            inlined: std::mem::take(&mut inlined),
            in_app: (frame.system || frame.runtime_failure).then_some(false),
            ..Frame::default()
        });
    }
    Ok(Thread {
        tid,
        name: thread.name.filter(|name| !name.is_empty()),
        crashed: thread.crashed,
        captured_by: Some(CaptureMethod::CRASH_CONTEXT),
        registers: registers_of(&thread.registers, arch)?,
        frames,
        skipped: skipped.into_iter().filter(|skipped| skipped.count > 0).collect(),
        ..Thread::default()
    })
}

/// Returns `paint::fill + 12` without the offset.
fn without_offset(description: &str) -> &str {
    let is_distance = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match description.rsplit_once(" + ").or_else(|| description.rsplit_once(" - ")) {
        Some((name, distance)) if is_distance(distance.trim_start_matches('-')) => name,
        _ => description,
    }
}

fn registers_of(said: &BTreeMap<String, String>, arch: Option<Arch>) -> Result<Option<Registers>, SwiftCrashLogError> {
    let count = match arch {
        Some(Arch::X86_64) => 18,
        Some(Arch::Aarch64) => 34,
        None => return Ok(None),
    };
    let mut registers = Registers { arch, general: vec![0; count], ..Registers::default() };
    let names: Vec<&str> = registers.named().map(|(name, _)| name).collect();
    let mut is_any = false;
    for (name, place) in names.into_iter().zip(0..count) {
        // Swift uses register numbers for the frame pointer and the link register.
        let other = match name {
            "fp" => "x29",
            "lr" => "x30",
            _ => name,
        };
        if let Some(value) = said.get(name).or_else(|| said.get(other)) {
            registers.general[place] = number("register", &value.replace(' ', ""))?;
            is_any = true;
        }
    }
    Ok(is_any.then_some(registers))
}

fn image_of(image: LogImage, os: Os) -> Result<Image, SwiftCrashLogError> {
    let (start, end) =
        (number("image baseAddress", &image.base_address)?, number("image endOfText", &image.end_of_text)?);
    let size = end.saturating_sub(start);
    let digits: Vec<u8> = image.build_id.unwrap_or_default().bytes().filter(u8::is_ascii_hexdigit).collect();
    let digit = |digit: u8| char::from(digit).to_digit(16).unwrap_or_default() as u8;
    let build_id = digits.as_chunks::<2>().0.iter().map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect();
    Ok(Image {
        kind: if matches!(os, Os::LINUX | Os::ANDROID) { ImageKind::ELF } else { ImageKind::MACHO },
        path: image.path.or(image.name).unwrap_or_default(),
        load_address: Address(start),
        size,
        text: TextRange { address: Address(start), size },
        build_id: Bytes(build_id),
        ..Image::default()
    })
}
