//! Apple's MetricKit: the system's diagnostics of the app.
//!
//! These are crashes (`MXCrashDiagnostic`), including those that no process can record (kills by
//! the watchdog, for memory, for an invalid code signature), and non-fatal events: hangs, excessive
//! CPU time or disk writes, slow launches.
//!
//! The app passes the output of `MXDiagnosticPayload.jsonRepresentation()`. A crash is assigned to
//! its process's run: from iOS 17 and macOS 14 on, the metadata contains the process id (`pid`); a
//! thread's stack may encode the run's id ([`run_id_stack`]). Crashes without either are left out,
//! because a second report of a death that Coroner has recorded could not be distinguished from a
//! first. Each other diagnostic is a report of its own, without a run.
//!
//! Source of the format: MetricKit's documentation of the three `jsonRepresentation()`. In a crash,
//! each thread is a chain of frames with the innermost frame as the root; addresses are those in
//! the process, with the offset from the image's `__TEXT`. If the stacks don't belong to threads
//! (`callStackPerThread` is false: for hangs, processor time and writes), the root is the outermost
//! frame, and a frame contains its callees in all samples ("Identify trends with the Power and
//! Performance API", WWDC 2020): the report contains the path with the most samples.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use coroner_process::registers::Arch;
use coroner_report::model::{
    Address, Annotation, AppFacts, Bytes, Crash, CrashFlag, DeviceFacts, Exception, Frame, Hang, Header, Id, Image,
    Mach, OsFacts, Report, RunFacts, Signal, Thread, Timestamp, mach_code_name, mach_exception_name, signal_name,
};
use coroner_report::wire::{AddressKind, CaptureMethod, FORMAT_VERSION, FoundBy, ImageKind, Monitor, Os};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{SystemEnd, SystemReport};
use crate::run_id_stack;

/// The source in every record.
const SOURCE: &str = "MetricKit";
/// Prefix of a trace in this format.
const FORM: &[u8] = b"{\"metric_kit_";
/// Maximum size in bytes of a payload that is read.
const MAX_BYTES: usize = 32 << 20;
/// Maximum depth of nesting: each frame is two levels deeper than its callee's.
const MAX_DEPTH: usize = 4096;
/// Size in bytes of the reading thread's stack: each level of nesting takes a few functions of the
/// reader.
const STACK: usize = 64 << 20;

/// The reason that a payload can't be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum MetricKitError {
    /// The JSON is not that of an `MXDiagnosticPayload`.
    NotAPayload(serde_json::Error),
    /// The JSON is that of one diagnostic, such as an `MXCrashDiagnostic`, without the payload's
    /// time.
    SingleDiagnostic,
    /// The payload contains no valid time.
    NoTime(String),
    /// The payload is larger or nested more deeply than the limit.
    TooLarge {
        /// Size of the payload in bytes.
        bytes: usize,
        /// Depth of its nested objects and arrays, as far as it was determined.
        depth: usize,
    },
    /// The reading thread could not be started.
    NoThread(std::io::Error),
}

impl std::error::Error for MetricKitError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            MetricKitError::NotAPayload(error) => Some(error),
            MetricKitError::NoThread(error) => Some(error),
            _ => None,
        }
    }
}

impl fmt::Display for MetricKitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetricKitError::NotAPayload(error) => write!(f, "not the JSON of an MXDiagnosticPayload: {error}"),
            MetricKitError::SingleDiagnostic => {
                f.write_str("the JSON of a single diagnostic instead of an MXDiagnosticPayload, which has the time")
            }
            MetricKitError::NoTime(time) => write!(f, "the payload's timeStampEnd is not a valid time: {time:?}"),
            MetricKitError::TooLarge { bytes, depth } => write!(
                f,
                "the payload has {bytes} bytes and a nesting depth of {depth}; the limits are {MAX_BYTES} and {MAX_DEPTH}"
            ),
            MetricKitError::NoThread(_) => f.write_str("can't start a thread to read the payload"),
        }
    }
}

impl From<serde_json::Error> for MetricKitError {
    fn from(error: serde_json::Error) -> Self {
        MetricKitError::NotAPayload(error)
    }
}

impl From<std::io::Error> for MetricKitError {
    fn from(error: std::io::Error) -> Self {
        MetricKitError::NoThread(error)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Payload<'a> {
    #[serde(default)]
    time_stamp_end: String,
    #[serde(borrow, default)]
    crash_diagnostics: Vec<&'a RawValue>,
    #[serde(borrow, default)]
    hang_diagnostics: Vec<&'a RawValue>,
    #[serde(borrow, default)]
    cpu_exception_diagnostics: Vec<&'a RawValue>,
    #[serde(borrow, default)]
    disk_write_exception_diagnostics: Vec<&'a RawValue>,
    #[serde(borrow, default)]
    app_launch_diagnostics: Vec<&'a RawValue>,
    /// Only in the JSON of a single diagnostic.
    #[serde(borrow)]
    call_stack_tree: Option<&'a RawValue>,
}

impl<'a> Payload<'a> {
    /// Returns all diagnostics as traces, with the source under which their identities are
    /// recorded.
    fn traces(self) -> Vec<(&'static str, Trace<'a>)> {
        let of = |source, all: Vec<&'a RawValue>, make: fn(&'a RawValue) -> Trace<'a>| {
            all.into_iter().map(move |diagnostic| (source, make(diagnostic)))
        };
        of(SOURCE, self.crash_diagnostics, Trace::MetricKitCrash)
            .chain(of("MetricKit, hangs", self.hang_diagnostics, Trace::MetricKitHang))
            .chain(of("MetricKit, processor time", self.cpu_exception_diagnostics, Trace::MetricKitCpu))
            .chain(of("MetricKit, disk writes", self.disk_write_exception_diagnostics, Trace::MetricKitDiskWrites))
            .chain(of("MetricKit, launches", self.app_launch_diagnostics, Trace::MetricKitLaunch))
            .collect()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Diagnostic {
    #[serde(default)]
    call_stack_tree: CallStackTree,
    #[serde(default)]
    diagnostic_meta_data: MetaData,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct CallStackTree {
    call_stack_per_thread: Option<bool>,
    call_stacks: Vec<CallStack>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct CallStack {
    thread_attributed: bool,
    call_stack_root_frames: Vec<MetricFrame>,
}

impl CallStack {
    /// Returns the run's id, if this is the stack of the thread that encodes it.
    fn run_id(&self) -> Option<Id> {
        let mut addresses = Vec::new();
        let mut next = self.call_stack_root_frames.first();
        while let Some(frame) = next {
            addresses.push(frame.address);
            next = frame.sub_frames.first();
        }
        run_id_stack::read(&addresses)
    }

    /// Returns the frames, innermost first.
    fn frames(self, is_of_thread: bool) -> Vec<MetricFrame> {
        let mut frames = Vec::new();
        let heaviest = |all: Vec<MetricFrame>| match is_of_thread {
            true => all.into_iter().next(),
            // The first of several with the same weight.
            false => all.into_iter().rev().max_by_key(|frame| frame.sample_count),
        };
        let mut next = heaviest(self.call_stack_root_frames);
        while let Some(mut frame) = next {
            next = heaviest(std::mem::take(&mut frame.sub_frames));
            frames.push(frame);
        }
        if !is_of_thread {
            frames.reverse();
        }
        frames
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct MetricFrame {
    #[serde(rename = "binaryUUID")]
    binary_uuid: String,
    binary_name: String,
    offset_into_binary_text_segment: u64,
    address: u64,
    sample_count: u64,
    sub_frames: Vec<MetricFrame>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct MetaData {
    pid: Option<u32>,
    exception_type: Option<i32>,
    // Codes have 64 bits, signed or unsigned.
    exception_code: Option<i128>,
    signal: Option<i32>,
    termination_reason: Option<String>,
    virtual_memory_region_info: Option<String>,
    platform_architecture: Option<String>,
    os_version: Option<String>,
    app_version: Option<String>,
    // `applicationBuildVersion` in older documentation.
    #[serde(alias = "applicationBuildVersion")]
    app_build_version: Option<String>,
    device_type: Option<String>,
    bundle_identifier: Option<String>,
    #[serde(rename = "objectiveCexceptionReason", alias = "exceptionReason")]
    exception_reason: Option<ExceptionReason>,
    hang_duration: Option<String>,
    #[serde(rename = "totalCPUTime")]
    total_cpu_time: Option<String>,
    total_sampled_time: Option<String>,
    writes_caused: Option<String>,
    launch_duration: Option<String>,
}

#[derive(Deserialize, Default, Clone)]
#[serde(rename_all = "camelCase", default)]
struct ExceptionReason {
    composed_message: String,
    exception_name: String,
    class_name: String,
}

/// A trace: a diagnostic as MetricKit provided it.
#[derive(Serialize, Deserialize, Clone, Copy)]
#[serde(rename_all = "snake_case")]
#[allow(clippy::enum_variant_names, reason = "files of traces have these names")]
enum Trace<'a> {
    #[serde(borrow)]
    MetricKitCrash(&'a RawValue),
    #[serde(borrow)]
    MetricKitHang(&'a RawValue),
    #[serde(borrow)]
    MetricKitCpu(&'a RawValue),
    #[serde(borrow)]
    MetricKitDiskWrites(&'a RawValue),
    #[serde(borrow)]
    MetricKitLaunch(&'a RawValue),
}

impl Trace<'_> {
    fn diagnostic(&self) -> &[u8] {
        let (Self::MetricKitCrash(json)
        | Self::MetricKitHang(json)
        | Self::MetricKitCpu(json)
        | Self::MetricKitDiskWrites(json)
        | Self::MetricKitLaunch(json)) = self;
        json.get().as_bytes()
    }

    /// Returns the diagnostic's name and a description with its amount; `None` for a crash.
    fn survived(&self, meta: &MetaData) -> Option<(&'static str, String)> {
        let amount = |text: &Option<String>| text.clone().unwrap_or_else(|| "an unknown amount".to_owned());
        Some(match self {
            Self::MetricKitCrash(_) => return None,
            Self::MetricKitHang(_) => {
                ("MXHangDiagnostic", format!("the app did not respond for {}", amount(&meta.hang_duration)))
            }
            Self::MetricKitCpu(_) => {
                let (used, of) = (amount(&meta.total_cpu_time), amount(&meta.total_sampled_time));
                ("MXCPUExceptionDiagnostic", format!("{used} of CPU time in {of}"))
            }
            Self::MetricKitDiskWrites(_) => {
                ("MXDiskWriteExceptionDiagnostic", format!("{} were written to disk", amount(&meta.writes_caused)))
            }
            Self::MetricKitLaunch(_) => {
                ("MXAppLaunchDiagnostic", format!("the launch took {}", amount(&meta.launch_duration)))
            }
        })
    }
}

/// Returns the maximum depth of nested objects and arrays in a JSON text; stops above
/// [`MAX_DEPTH`].
fn depth_of(json: &[u8]) -> usize {
    let (mut depth, mut deepest, mut in_text, mut is_escaped) = (0_usize, 0, false, false);
    for byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_text => is_escaped = true,
            b'"' => in_text = !in_text,
            b'{' | b'[' if !in_text => depth += 1,
            b'}' | b']' if !in_text => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
        if deepest > MAX_DEPTH {
            break;
        }
    }
    deepest
}

/// Runs `read` on a stack that is large enough for it.
fn on_deep_stack<T: Send>(json: &[u8], read: impl FnOnce() -> T + Send) -> Result<T, MetricKitError> {
    let depth = depth_of(json);
    if json.len() > MAX_BYTES || depth > MAX_DEPTH {
        return Err(MetricKitError::TooLarge { bytes: json.len(), depth });
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("coroner.metrickit".into()).stack_size(STACK);
        let reading = thread.spawn_scoped(scope, read)?;
        reading.join().map_err(|_| std::io::Error::other("reading the payload panicked").into())
    })
}

/// Reads a value that may be nested more deeply than serde_json allows by default.
///
/// Only on a large stack.
fn deep<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_slice(json);
    reader.disable_recursion_limit();
    let value = T::deserialize(&mut reader)?;
    reader.end().map(|()| value)
}

/// Converts an `MXDiagnosticPayload` to records of crashes, hangs and other diagnostics.
///
/// `json` is the payload's `jsonRepresentation()`. Pass the result to
/// [`Coroner::add_system_reports`](crate::Coroner::add_system_reports), which skips records that it
/// has seen before. Crashes without a process id (before iOS 17 and macOS 14) and without the stack
/// that encodes the run's id ([`Config::run_id_thread`](crate::Config::run_id_thread)) are left
/// out. Each diagnostic of a non-fatal event becomes a separate report.
///
/// # Errors
/// [`MetricKitError`] if the bytes are not a payload, are too many, or contain no time. A
/// diagnostic in an unknown format is left out if there are others.
pub fn metric_kit_reports(json: &[u8]) -> Result<Vec<SystemReport>, MetricKitError> {
    on_deep_stack(json, || {
        let mut payload: Payload<'_> = deep(json)?;
        let end_of_payload = std::mem::take(&mut payload.time_stamp_end);
        if payload.call_stack_tree.is_some() {
            return Err(MetricKitError::SingleDiagnostic);
        }
        let traces = payload.traces();
        if traces.is_empty() {
            return Ok(Vec::new());
        }
        let time = time_of(&end_of_payload).ok_or(MetricKitError::NoTime(end_of_payload))?;
        let (mut reports, mut refused) = (Vec::new(), None);
        for (source, trace) in traces {
            // A diagnostic in an unknown format must not prevent the others from being read.
            let Diagnostic { diagnostic_meta_data: meta, call_stack_tree } = match deep(trace.diagnostic()) {
                Ok(diagnostic) => diagnostic,
                Err(error) => {
                    log::warn!("coroner: ignoring a MetricKit diagnostic in an unknown format: {error}");
                    refused = Some(error);
                    continue;
                }
            };
            let source = source.to_owned();
            let (details, bytes) = (details(&meta), serde_json::to_vec(&trace)?);
            if trace.survived(&meta).is_some() {
                let (pid, end) = (meta.pid.unwrap_or(0), SystemEnd::Survived);
                reports.push(SystemReport { source, pid, run_id: None, time, end, details, trace: bytes });
                continue;
            }
            let run_id = call_stack_tree.call_stacks.iter().find_map(CallStack::run_id);
            let Some(pid) = meta.pid.or(run_id.map(|_| 0)) else {
                log::debug!("coroner: ignoring a MetricKit diagnostic without a process id and a run id");
                continue;
            };
            let end = SystemEnd::Crashed;
            reports.push(SystemReport { source, pid, run_id, time, end, details, trace: bytes });
        }
        match refused {
            Some(error) if reports.is_empty() => Err(error.into()),
            _ => Ok(reports),
        }
    })?
}

/// Converts each diagnostic of an `MXDiagnosticPayload`, or a single diagnostic, to a report.
///
/// For developers who have the JSON in a file: nothing is left out, and nothing is known about the
/// run. The time is the payload's end; a single diagnostic has none.
///
/// # Errors
/// [`MetricKitError`] as [`metric_kit_reports`].
pub fn read_metric_kit(json: &[u8]) -> Result<Vec<Report>, MetricKitError> {
    on_deep_stack(json, || {
        let payload: Payload<'_> = deep(json)?;
        let time = time_of(&payload.time_stamp_end).map(Timestamp::from).unwrap_or_default();
        let traces: Vec<Trace<'_>> = match payload.call_stack_tree {
            Some(_) => vec![Trace::MetricKitCrash(deep(json)?)],
            None => payload.traces().into_iter().map(|(_, trace)| trace).collect(),
        };
        let reports = traces.iter().map(|trace| {
            let mut report = report_of_trace(trace)?;
            if let Some(crash) = report.crash.as_mut() {
                crash.time = time;
            }
            Ok(report)
        });
        reports.collect()
    })?
}

/// Whether a file looks like the JSON of a payload or of a diagnostic, by its first 4 KiB.
pub fn is_metric_kit(bytes: &[u8]) -> bool {
    const KEY: &[u8] = b"\"callStackTree\"";
    let start = bytes.get(..4096).unwrap_or(bytes);
    start.trim_ascii_start().starts_with(b"{") && start.windows(KEY.len()).any(|window| window == KEY)
}

/// Parses a time such as `2022-09-18 15:28:37`, with or without a fraction and an offset from UTC.
fn time_of(text: &str) -> Option<SystemTime> {
    let mut words = text.split_whitespace();
    let (date, time, offset) = (words.next()?, words.next()?, words.next().unwrap_or("Z"));
    let time: Timestamp = format!("{date}T{time}{offset}").parse().ok()?;
    Some(UNIX_EPOCH + std::time::Duration::from_nanos(time.0))
}

fn details(meta: &MetaData) -> BTreeMap<String, String> {
    let reason = meta.exception_reason.clone().unwrap_or_default();
    let details = [
        ("termination_reason", meta.termination_reason.clone()),
        ("virtual_memory_region", meta.virtual_memory_region_info.clone()),
        ("os_version", meta.os_version.clone()),
        ("app_version", meta.app_version.clone()),
        ("app_build", meta.app_build_version.clone()),
        ("device", meta.device_type.clone()),
        ("bundle", meta.bundle_identifier.clone()),
        ("hang_duration", meta.hang_duration.clone()),
        ("processor_time", meta.total_cpu_time.clone()),
        ("sampled_time", meta.total_sampled_time.clone()),
        ("writes", meta.writes_caused.clone()),
        ("launch_duration", meta.launch_duration.clone()),
        ("exception_name", Some(reason.exception_name)),
        ("exception_class", Some(reason.class_name)),
        ("exception_message", Some(reason.composed_message)),
    ];
    let details =
        details.into_iter().filter_map(|(key, text)| Some((key.to_owned(), text.filter(|text| !text.is_empty())?)));
    details.collect()
}

/// Whether a trace is a MetricKit diagnostic.
pub(super) fn is_of_it(trace: &[u8]) -> bool {
    trace.starts_with(FORM)
}

/// Converts a trace to a report.
pub(super) fn read(trace: &[u8]) -> Option<Report> {
    on_deep_stack(trace, || report_of_trace(&deep(trace).ok()?).ok()).ok()?
}

fn report_of_trace(trace: &Trace<'_>) -> Result<Report, serde_json::Error> {
    let diagnostic: Diagnostic = deep(trace.diagnostic())?;
    let survived = trace.survived(&diagnostic.diagnostic_meta_data);
    let hang = matches!(trace, Trace::MetricKitHang(_)).then(|| {
        let lasted = diagnostic.diagnostic_meta_data.hang_duration.as_deref().and_then(nanoseconds).unwrap_or(0);
        Hang { lasted_ns: lasted, duration_ns: Some(lasted).filter(|lasted| *lasted > 0), ..Hang::default() }
    });
    let mut report = report_of(diagnostic);
    if let (Some((kind, message)), Some(crash)) = (survived, report.crash.as_mut()) {
        crash.flags.push(CrashFlag::NotFatal);
        crash.monitor = if hang.is_some() { Monitor::HANG } else { Monitor::USER };
        if hang.is_none() {
            let type_name = Some(kind.to_owned());
            let exception = Exception { type_name, message: Some(message), tid: crash.tid, ..Exception::default() };
            report.exceptions.push(exception);
        }
        crash.hang = hang;
    }
    Ok(report)
}

/// Parses a duration as the system writes it for people: `20 sec`, `2,5 s`, `900 ms`, `1.5 min`.
fn nanoseconds(text: &str) -> Option<u64> {
    let text = text.trim();
    let number_end = text.find(|character: char| !matches!(character, '0'..='9' | '.' | ',')).unwrap_or(text.len());
    let number: f64 = text[..number_end].replace(',', ".").parse().ok()?;
    let unit = text[number_end..].trim_start();
    let seconds = match unit {
        _ if unit.starts_with("ms") => 1e-3,
        _ if unit.starts_with("min") => 60.0,
        _ if unit.starts_with('s') => 1.0,
        _ => return None,
    };
    let nanoseconds = number * seconds * 1e9;
    // A hang of more than a year is not plausible.
    (nanoseconds < 3.2e16).then_some(nanoseconds as u64)
}

fn report_of(diagnostic: Diagnostic) -> Report {
    let Diagnostic { call_stack_tree, diagnostic_meta_data: meta } = diagnostic;
    // On other systems, the report is read by a developer; most devices run iOS.
    let os = if cfg!(target_vendor = "apple") { Os::NATIVE } else { Os::IOS };
    let arch = match meta.platform_architecture.as_deref() {
        Some("x86_64" | "x86_64h") => Some(Arch::X86_64),
        Some(name) if name.starts_with("arm64") => Some(Arch::Aarch64),
        _ => None,
    };
    let number = meta.signal.filter(|number| *number > 0);
    let meta_facts = details(&meta);
    let reason = meta.exception_reason.unwrap_or_default();
    let text = |text: String| Some(text).filter(|text| !text.is_empty());
    let mut report = Report {
        complete: true,
        header: Header { format_version: FORMAT_VERSION, pid: meta.pid.unwrap_or(0), arch, os, ..Header::default() },
        crash: Some(Crash {
            monitor: if meta.exception_type.is_some() { Monitor::MACH } else { Monitor::SIGNAL },
            signal: number.map(|number| Signal { number, name: signal_name(os, number), ..Signal::default() }),
            mach: meta.exception_type.map(|exception| {
                let (code, name) = (meta.exception_code.unwrap_or(0) as i64, mach_exception_name(exception));
                let code_name = mach_code_name(exception, code);
                Mach {
                    exception,
                    name,
                    code,
                    code_name,
                    unknown_codes: meta.exception_code.is_none(),
                    ..Mach::default()
                }
            }),
            message: text(reason.composed_message),
            exception_type: text(reason.exception_name),
            ..Crash::default()
        }),
        ..Report::default()
    };
    let mut images: BTreeMap<u64, Image> = BTreeMap::new();
    let is_any_attributed = call_stack_tree.call_stacks.iter().any(|stack| stack.thread_attributed);
    let is_of_thread = call_stack_tree.call_stack_per_thread.unwrap_or(true);
    // The thread that encodes the run's id is not the app's.
    let is_shown = |(_, stack): &(usize, CallStack)| stack.thread_attributed || stack.run_id().is_none();
    for (index, stack) in call_stack_tree.call_stacks.into_iter().enumerate().filter(is_shown) {
        let crashed = stack.thread_attributed || !is_any_attributed && index == 0;
        // MetricKit has no thread ids: threads are numbered.
        let tid = index as u64 + 1;
        let mut frames: Vec<Frame> = Vec::new();
        for frame in stack.frames(is_of_thread) {
            frames.push(frame_of(&frame, frames.is_empty(), &mut images));
        }
        if crashed && let Some(crash) = report.crash.as_mut().filter(|crash| crash.tid == 0) {
            crash.tid = tid;
        }
        report.threads.push(Thread {
            tid,
            crashed,
            captured_by: Some(CaptureMethod::CRASH_CONTEXT),
            frames,
            ..Thread::default()
        });
    }
    // `dyld` was loaded beside the app before iOS 16.
    let is_own = |image: &Image| is_below_shared_cache(image.load_address.0, arch) && image.path != "dyld";
    if let Some(main) = images.values_mut().find(|image| is_own(image)) {
        main.is_main = true;
    }
    let own: Vec<u64> = images.values().filter(|image| is_own(image)).map(|image| image.load_address.0).collect();
    report.images = images.into_values().collect();
    report.run = Some(run_facts(&report, &meta_facts));
    let texts = [("termination reason", meta.termination_reason), ("memory", meta.virtual_memory_region_info)];
    for (source, text) in texts.into_iter().filter_map(|(source, text)| Some((source, text?))) {
        report.annotations.push(Annotation { source: source.to_owned(), text, ..Annotation::default() });
    }
    report.attribute_frames();
    for frame in report.threads.iter_mut().flat_map(|thread| &mut thread.frames) {
        let start = frame.module_offset.map(|offset| frame.address.0.wrapping_sub(offset.0));
        frame.in_app = start.map(|start| own.contains(&start));
    }
    report
}

/// Returns what a diagnostic contains about the app, the system and the device.
fn run_facts(report: &Report, details: &BTreeMap<String, String>) -> RunFacts {
    let of = |key: &str| details.get(key).cloned();
    // `iPhone OS 18.5 (22F76)`
    let system = of("os_version").unwrap_or_default();
    let (version, build) = system.split_once(" (").unwrap_or((&system, ""));
    let (name, version) = version.rsplit_once(' ').unwrap_or(("", version));
    let known = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let name = if name == "iPhone OS" { "iOS" } else { name };
    let release = of("bundle").zip(of("app_version")).map(|(bundle, version)| match of("app_build") {
        Some(build) => format!("{bundle}@{version}+{build}"),
        None => format!("{bundle}@{version}"),
    });
    RunFacts {
        app: AppFacts {
            release,
            id: of("bundle"),
            version: of("app_version"),
            build: of("app_build"),
            name: report.images.iter().find(|image| image.is_main).map(|image| image.path.clone()),
            ..AppFacts::default()
        },
        os: OsFacts {
            name: known(name),
            version: known(version),
            build: known(build.trim_end_matches(')')),
            ..OsFacts::default()
        },
        device: DeviceFacts {
            model: of("device"),
            arch: report.header.arch.map(|arch| arch.name().to_owned()),
            ..DeviceFacts::default()
        },
        ..RunFacts::default()
    }
}

/// Whether an address is in the app's own images.
///
/// Those of the system are in the shared cache, which begins at these addresses.
fn is_below_shared_cache(address: u64, arch: Option<Arch>) -> bool {
    match arch {
        Some(Arch::Aarch64) => address < 0x1_8000_0000,
        Some(Arch::X86_64) => address < 0x7ff0_0000_0000,
        _ => false,
    }
}

fn frame_of(frame: &MetricFrame, is_first: bool, images: &mut BTreeMap<u64, Image>) -> Frame {
    let offset = frame.offset_into_binary_text_segment;
    let load_address = frame.address.saturating_sub(offset);
    if !frame.binary_uuid.is_empty() {
        let image = images.entry(load_address).or_insert_with(|| Image {
            kind: ImageKind::MACHO,
            path: frame.binary_name.clone(),
            load_address: Address(load_address),
            build_id: uuid_of(&frame.binary_uuid),
            ..Image::default()
        });
        // The image's size is unknown: it is as large as its frames need.
        image.size = image.size.max(offset.saturating_add(1));
    }
    Frame {
        address: Address(frame.address),
        found_by: if is_first { FoundBy::CONTEXT } else { FoundBy::default() },
        address_kind: if is_first { AddressKind::INSTRUCTION } else { AddressKind::RETURN },
        ..Frame::default()
    }
}

fn uuid_of(text: &str) -> Bytes {
    let digits: Vec<u8> =
        text.bytes().filter_map(|byte| char::from(byte).to_digit(16)).map(|digit| digit as u8).collect();
    Bytes(digits.as_chunks::<2>().0.iter().map(|pair| pair[0] << 4 | pair[1]).collect())
}
