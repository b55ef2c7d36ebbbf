//! The JSON form. Fields of an unexpected type are ignored.

use coroner_process::registers::{AARCH64_NAMES, Arch, X86_64_NAMES};
use coroner_report::model::{Address, Exception, Frame, InlinedFrame, Registers, Thread};
use coroner_report::wire::{AddressKind, FoundBy};
use coroner_symbols::Arch as ImageArch;
use serde_json::Value;

use super::text::{frame, is_uncaught, name_and_reason};
use super::{MAX_FRAMES, MAX_IMAGES, MAX_THREADS, Parsed, thrown, time};
use crate::apple_report::{AppleImage, AppleReportError, arch, ips, termination_codes};

pub(super) fn read(bytes: &[u8]) -> Result<Parsed, AppleReportError> {
    let (heading, document) = ips::values(bytes)?;
    let text = |value: &Value, keys: &[&str]| {
        let found = keys.iter().try_fold(value, |value, key| value.get(*key)).and_then(Value::as_str);
        found.map(ToOwned::to_owned).filter(|text| !text.is_empty())
    };
    let number = |key: &str| document.get(key).and_then(Value::as_u64).unwrap_or_default() as u32;
    let cpu = text(&document, &["cpuType"]).unwrap_or_default();
    let mut parsed = Parsed {
        incident: text(&document, &["incident"]).or_else(|| text(&heading, &["incident_id"])),
        process_name: text(&document, &["procName"]).or_else(|| text(&heading, &["name"])).unwrap_or_default(),
        pid: number("pid"),
        parent_pid: number("parentPid"),
        path: text(&document, &["procPath"]),
        bundle_id: text(&document, &["bundleInfo", "CFBundleIdentifier"]).or_else(|| text(&heading, &["bundleID"])),
        version: text(&document, &["bundleInfo", "CFBundleShortVersionString"])
            .or_else(|| text(&heading, &["app_version"])),
        build: text(&document, &["bundleInfo", "CFBundleVersion"]).or_else(|| text(&heading, &["build_version"])),
        os: text(&heading, &["os_version"]).or_else(|| {
            let build = text(&document, &["osVersion", "build"]).unwrap_or_default();
            Some(format!("{} ({build})", text(&document, &["osVersion", "train"])?))
        }),
        hardware: text(&document, &["modelCode"]),
        time: text(&document, &["captureTime"]).or_else(|| text(&heading, &["timestamp"])).and_then(|text| time(&text)),
        start: text(&document, &["procLaunch"]).and_then(|text| time(&text)),
        exception: text(&document, &["exception", "type"]),
        signal: text(&document, &["exception", "signal"]),
        subtype: text(&document, &["exception", "subtype"]),
        crashed: document.get("faultingThread").and_then(Value::as_u64).map(|place| place as usize),
        ..Parsed::default()
    };
    let codes = list(&document["exception"]["rawCodes"]).iter();
    parsed.codes = codes.filter_map(|code| code.as_i64().or_else(|| Some(code.as_u64()? as i64))).take(4).collect();
    parsed.images = list(&document["usedImages"]).iter().take(MAX_IMAGES).map(image).collect();
    parsed.is_arm64 = match () {
        () if cpu.starts_with("ARM-64") => Some(true),
        () if cpu.starts_with("X86-64") => Some(false),
        // If the report doesn't specify it, its images do.
        () => parsed.images.iter().find_map(|image| match image.arch {
            ImageArch::Aarch64 => Some(true),
            ImageArch::X86_64 => Some(false),
            _ => None,
        }),
    };
    let arch = parsed.arch();
    parsed.threads = list(&document["threads"])
        .iter()
        .take(MAX_THREADS)
        .enumerate()
        .map(|(place, thread)| Thread {
            // Reports without thread ids have indices.
            tid: thread.get("id").and_then(Value::as_u64).unwrap_or(place as u64),
            name: text(thread, &["name"]),
            queue: text(thread, &["queue"]),
            crashed: thread.get("triggered").and_then(Value::as_bool) == Some(true),
            registers: arch.and_then(|arch| registers(&thread["threadState"], arch)),
            frames: stack(&thread["frames"], &parsed.images, true),
            ..Thread::default()
        })
        .collect();
    parsed.thrown = exception(&document, &parsed.images);
    parsed.annotate_exception(text(&document, &["exception", "message"]).as_deref());
    for key in ["vmRegionInfo", "vmregioninfo"] {
        parsed.annotate("VM region", text(&document, &[key]).unwrap_or_default());
    }
    annotations(&document, &mut parsed);
    Ok(parsed)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn image(value: &Value) -> AppleImage {
    let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let number = |key: &str| value.get(key).and_then(Value::as_u64).unwrap_or_default();
    AppleImage {
        name: text("name"),
        path: text("path"),
        load_address: number("base"),
        size: number("size"),
        debug_id: text("uuid").parse().ok(),
        arch: arch(&text("arch")),
    }
}

/// Returns the frames, innermost first. Inlined calls come before the frame that they were inlined
/// into, marked as such.
fn stack(frames: &Value, images: &[AppleImage], is_thread: bool) -> Vec<Frame> {
    let mut stack: Vec<Frame> = Vec::new();
    let mut inlined: Vec<InlinedFrame> = Vec::new();
    for frame in list(frames).iter().take(MAX_FRAMES) {
        let text = |key: &str| frame.get(key).and_then(Value::as_str).map(ToOwned::to_owned);
        let number = |key: &str| frame.get(key).and_then(Value::as_u64);
        let function = text("symbol").filter(|symbol| !symbol.is_empty() && symbol != "<redacted>");
        let (file, line) = (text("sourceFile"), number("sourceLine").map(|line| line as u32));
        if frame.get("inline").and_then(Value::as_bool) == Some(true) {
            inlined.push(InlinedFrame { function, file, line, ..InlinedFrame::default() });
            continue;
        }
        let image = number("imageIndex").and_then(|place| images.get(place as usize));
        let (Some(offset), Some(image)) = (number("imageOffset"), image) else { continue };
        let address = Address(image.load_address.wrapping_add(offset));
        let is_first = stack.is_empty() && is_thread;
        stack.push(Frame {
            address,
            found_by: if is_first { FoundBy::CONTEXT } else { FoundBy::CFI },
            address_kind: if is_first { AddressKind::INSTRUCTION } else { AddressKind::RETURN },
            symbol_address: number("symbolLocation")
                .filter(|_| function.is_some())
                .map(|at| Address(address.0.wrapping_sub(at))),
            function,
            file,
            line,
            inlined: std::mem::take(&mut inlined),
            ..Frame::default()
        });
    }
    stack
}

/// Returns the general registers; `None` if one of them is missing.
fn registers(state: &Value, arch: Arch) -> Option<Registers> {
    let value = |name: &str| state.get(name)?.get("value")?.as_u64();
    let general: Option<Vec<u64>> = match arch {
        Arch::X86_64 => X86_64_NAMES.iter().chain(&["rip", "rflags"]).map(|name| value(name)).collect(),
        Arch::Aarch64 => {
            let x = list(state.get("x")?).iter().map(|x| x.get("value").and_then(Value::as_u64));
            let x = x.chain([value("fp"), value("lr")]);
            let general: Option<Vec<u64>> = x.chain([value("sp"), value("pc"), value("cpsr")]).collect();
            general.filter(|general| general.len() == AARCH64_NAMES.len() + 3)
        }
    };
    Some(Registers { arch: Some(arch), general: general?, ..Registers::default() })
}

/// Returns what was thrown.
///
/// Older systems name it only in the text of an image, and write its stack only as lines of text.
fn exception(document: &Value, images: &[AppleImage]) -> Option<Exception> {
    let mut frames = stack(&document["lastExceptionBacktrace"], images, false);
    let reason = document.get("exceptionReason").filter(|reason| reason.is_object());
    let texts = document.get("asi").and_then(Value::as_object).into_iter().flat_map(|texts| texts.values());
    let uncaught = texts.flat_map(list).filter_map(Value::as_str).find(|text| is_uncaught(text));
    if frames.is_empty() && reason.is_none() && uncaught.is_none() {
        return None;
    }
    if frames.is_empty() {
        let backtrace = list(&document["asiBacktraces"]).first().and_then(Value::as_str).unwrap_or_default();
        frames = backtrace.lines().take(MAX_FRAMES).filter_map(|line| frame(line, false)).collect();
    }
    let text = |key: &str| reason?.get(key)?.as_str().map(ToOwned::to_owned);
    let (name, message) = uncaught.map_or((None, None), name_and_reason);
    Some(thrown(text("name").or_else(|| text("class")).or(name), text("composed_message").or(message), frames))
}

fn annotations(document: &Value, parsed: &mut Parsed) {
    if let Some(by_image) = document.get("asi").and_then(Value::as_object) {
        for (image, texts) in by_image {
            let texts: Vec<&str> = list(texts).iter().filter_map(Value::as_str).collect();
            parsed.annotate(image, texts.join("\n"));
        }
    }
    let termination = &document["termination"];
    if termination.is_object() {
        let text = |key: &str| termination.get(key).and_then(Value::as_str).unwrap_or_default();
        let code = termination.get("code").and_then(Value::as_u64).map_or_else(String::new, |code| format!(" {code}"));
        let reason = format!("{}{code} {}", text("namespace"), text("indicator"));
        let mut parts = vec![termination_codes::explain(reason.trim())];
        parts.extend(["reasons", "details"].iter().flat_map(|key| {
            list(&termination[*key]).iter().filter_map(Value::as_str).map(ToOwned::to_owned).collect::<Vec<_>>()
        }));
        parsed.annotate("termination", parts.join("\n"));
    }
}
