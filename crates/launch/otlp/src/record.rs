//! Converts a report to a log record.

use std::time::SystemTime;

use coroner_report::model::{
    Breadcrumb, CrashFlag, Exception, Explanation, Frame, ImageIndex, InApp, InAppRules, Report, RunFacts, Thread,
    Timestamp, hide_home,
};
use coroner_report::run_state::{Foreground, Level, ThermalState};
use coroner_report::text::write_stack;
use coroner_report::wire::{Access, Monitor};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber};

use crate::attributes::{Attributes, Field};
use crate::options::Labels;
use crate::resource;

/// The version of the semantic conventions whose names are used here.
const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.44.0";

/// Maximum size of the other threads' stacks, in bytes. The first threads that fit are included.
pub const MAX_OTHER_STACKS: usize = 256 << 10;

// Event names. The conventions have none for hangs.
const CRASH: &str = "app.crash";
const EXCEPTION: &str = "exception";
const HANG: &str = "coroner.hang";

/// Creates the request for a report's log record. It contains only names already in the report;
/// symbolicate the report first.
pub fn request(report: &Report, labels: &Labels) -> ExportLogsServiceRequest {
    let scope = InstrumentationScope {
        name: "coroner".to_owned(),
        version: resource::sdk_version(report).to_owned(),
        ..InstrumentationScope::default()
    };
    let logs =
        ScopeLogs { scope: Some(scope), log_records: vec![record(report, labels)], schema_url: SCHEMA_URL.to_owned() };
    let resource = resource::from_report(report, labels);
    let logs = ResourceLogs { resource: Some(resource), scope_logs: vec![logs], schema_url: SCHEMA_URL.to_owned() };
    ExportLogsServiceRequest { resource_logs: vec![logs] }
}

/// Whether the event terminated the process.
fn is_fatal(report: &Report) -> bool {
    report.crash.as_ref().is_none_or(|crash| !crash.has(CrashFlag::NotFatal) && crash.monitor != Monitor::USER)
}

fn event_name(report: &Report) -> &'static str {
    match &report.crash {
        Some(crash) if crash.monitor == Monitor::HANG => HANG,
        _ if is_fatal(report) => CRASH,
        _ => EXCEPTION,
    }
}

fn severity(report: &Report) -> SeverityNumber {
    if is_fatal(report) {
        return SeverityNumber::Fatal;
    }
    // A level set by the app only applies to events that the process survived.
    match report.run.as_ref().and_then(|run| run.level) {
        Some(Level::DEBUG) => SeverityNumber::Debug,
        Some(Level::INFO) => SeverityNumber::Info,
        Some(Level::WARNING) => SeverityNumber::Warn,
        Some(Level::FATAL) => SeverityNumber::Fatal,
        _ => SeverityNumber::Error,
    }
}

fn record(report: &Report, labels: &Labels) -> LogRecord {
    let time = report.crash.as_ref().map_or(report.header.process_start, |crash| crash.time);
    let severity = severity(report);
    let severity_text = severity.as_str_name().trim_start_matches("SEVERITY_NUMBER_");
    let (kind, message) = what_happened(report);
    let body = message.as_ref().map_or_else(|| kind.clone(), |message| format!("{kind}: {message}"));
    let mut attributes = Attributes::default();
    attributes.text("log.record.uid", Some(report.event_id().to_string()));
    let event_name = event_name(report);
    if event_name == CRASH {
        attributes.text("app.crash.id", Some(report.event_id().to_string()));
    }
    attributes.text("exception.type", Some(kind)).text("exception.message", message);
    attributes.text("exception.stacktrace", stacktrace(report));
    place(report, &mut attributes);
    thread(report, &mut attributes);
    resource::repeat(report, &mut attributes);
    cause(report, &mut attributes);
    if !labels.only_reported_thread {
        attributes.text("coroner.threads", other_stacks(report));
    }
    attributes.list("coroner.images", images(report));
    let (trace_id, span_id) = report.run.as_ref().map(trace).unwrap_or_default();
    if let Some(run) = &report.run {
        scope(run, &mut attributes);
    }
    LogRecord {
        time_unix_nano: time.0,
        observed_time_unix_nano: Timestamp::from(SystemTime::now()).0,
        severity_number: severity.into(),
        severity_text: severity_text.to_owned(),
        body: Some(AnyValue { value: Some(Any::StringValue(body)) }),
        attributes: attributes.into_list(),
        trace_id,
        span_id,
        event_name: event_name.to_owned(),
        ..LogRecord::default()
    }
}

/// Returns type and message: from the uncaught language exception, else from the signal.
fn what_happened(report: &Report) -> (String, Option<String>) {
    match (&report.crash, report.exceptions.first()) {
        (_, Some(exception)) => {
            let message = report.message_of(exception).map(ToOwned::to_owned);
            (exception.kind(), message.or_else(|| report.explained_cause()))
        }
        (Some(crash), None) => (crash.kind(), report.explained_cause()),
        (None, None) => ("Crash".to_owned(), Some("the report was truncated before its crash record".to_owned())),
    }
}

/// Returns the report's stack: its exception's if the runtime kept it, else its thread's.
fn stack(report: &Report) -> Option<&[Frame]> {
    let thrown = report.exceptions.first().map(|exception| &exception.frames[..]);
    let thread = reported_thread(report).map(|thread| &thread.frames[..]);
    thrown.filter(|frames| !frames.is_empty()).or(thread)
}

/// Returns the thread that the report is about, even if it did not crash.
fn reported_thread(report: &Report) -> Option<&Thread> {
    report.crashed_thread().or_else(|| {
        let tid = report.crash.as_ref()?.tid;
        report.threads.iter().find(|thread| thread.tid == tid)
    })
}

/// Formats the uncaught exception, its causes and the thread, each with its frames, innermost
/// first.
fn stacktrace(report: &Report) -> Option<String> {
    let mut text = String::new();
    for (place, exception) in report.exceptions.iter().enumerate() {
        if place > 0 {
            text.push_str("Caused by: ");
        }
        text.push_str(&heading(report, exception));
        write(&mut text, &exception.frames, &exception.skipped);
    }
    let thread = reported_thread(report);
    let is_written =
        |thread: &Thread| report.exceptions.first().is_some_and(|exception| thread.has_frames_of(exception));
    if let Some(thread) = thread.filter(|thread| !thread.frames.is_empty() && !is_written(thread)) {
        if text.is_empty() {
            let (kind, message) = what_happened(report);
            text = message.map_or_else(|| kind.clone(), |message| format!("{kind}: {message}"));
            text.push('\n');
        } else {
            text.push_str("Thread:\n");
        }
        write(&mut text, &thread.frames, &thread.skipped);
    }
    (!text.is_empty()).then_some(text)
}

fn heading(report: &Report, exception: &Exception) -> String {
    let message = report.message_of(exception).map_or_else(String::new, |message| format!(": {message}"));
    format!("{}{message}\n", exception.kind())
}

/// Writes frames as reports show them, without the user's name in paths.
fn write(text: &mut String, frames: &[Frame], skipped: &[coroner_report::model::Skipped]) {
    let mut frames = frames.to_vec();
    for frame in &mut frames {
        let inlined = frame.inlined.iter_mut().map(|inlined| &mut inlined.file);
        inlined.chain([&mut frame.file, &mut frame.module]).flatten().for_each(hide_home);
    }
    // Writing to a string can't fail.
    let _ = write_stack(text, &frames, skipped);
}

/// Adds the location: the app's own innermost function, else the innermost named one.
fn place(report: &Report, attributes: &mut Attributes) {
    let rules = InAppRules::default();
    let in_app = InApp::new(&rules, report);
    let frames = stack(report).unwrap_or_default();
    let functions =
        || frames.iter().flat_map(|frame| in_app.functions(frame)).filter(|function| function.name.is_some());
    let own = functions().find(|function| function.in_app);
    let Some(function) = own.or_else(|| functions().next()) else { return };
    let file = function.file.map(|file| {
        let mut file = file.to_owned();
        hide_home(&mut file);
        file
    });
    attributes
        .text("code.function.name", function.name)
        .text("code.file.path", file)
        .set("code.line.number", function.line.filter(|line| *line > 0))
        .set("code.column.number", function.column.filter(|column| *column > 0));
}

fn thread(report: &Report, attributes: &mut Attributes) {
    let tid = report.crash.as_ref().map(|crash| crash.tid).filter(|tid| *tid != 0);
    attributes
        .set("thread.id", tid)
        .text("thread.name", reported_thread(report).and_then(|thread| thread.name.as_ref()));
}

/// Adds details for which the conventions have no names.
fn cause(report: &Report, attributes: &mut Attributes) {
    let Some(crash) = &report.crash else { return };
    let signal = crash.signal.as_ref();
    let lifecycle = report.run.as_ref().map(|run| &run.lifecycle);
    attributes
        .text("coroner.monitor", crash.monitor.name())
        .set("coroner.handled", Some(report.is_handled()))
        .text("coroner.signal.name", signal.and_then(|signal| signal.name))
        .text("coroner.signal.code", signal.and_then(|signal| signal.code_name))
        .text("coroner.mach.exception", crash.mach.as_ref().and_then(|mach| mach.name))
        .text("coroner.fault.address", crash.address.map(|address| address.to_string()))
        .text("coroner.fault.access", crash.access.and_then(Access::name))
        .text("coroner.location", crash.location.as_ref())
        .set("coroner.hang.duration", crash.hang.as_ref().map(|hang| hang.duration().0.as_secs_f64()))
        .set("coroner.memory.used", lifecycle.and_then(|lifecycle| lifecycle.memory_used))
        .set("coroner.memory.available", lifecycle.and_then(|lifecycle| lifecycle.memory_available))
        .set("coroner.report.complete", Some(report.complete));
    if let Some(explanation) = report.explanation.as_ref().filter(|explanation| explanation.kind.is_fault()) {
        fault(explanation, attributes);
    }
    let waits_for = report.explanation.as_ref().and_then(|explanation| explanation.waits_for.as_ref());
    attributes.text("coroner.waits_for", waits_for);
    let foreground = lifecycle.map(|lifecycle| lifecycle.foreground).filter(|state| *state != Foreground::UNKNOWN);
    attributes.text("coroner.app.state", foreground.and_then(Foreground::name));
    if let Some(state) = report.run.as_ref().and_then(|run| run.device_state.as_ref()) {
        attributes
            .set("coroner.device.memory.free", state.memory_free)
            .set("coroner.device.storage.size", state.storage_size)
            .set("coroner.device.storage.free", state.storage_free)
            .set("coroner.device.battery.percent", state.battery_percent.map(u64::from))
            .set("coroner.device.charging", state.charging)
            .text("coroner.device.thermal_state", state.thermal.and_then(ThermalState::name));
    }
}

/// Adds the explanation of the crash. Address and access as reported by the system have already
/// been set.
fn fault(explanation: &Explanation, attributes: &mut Attributes) {
    let access = explanation.access.unwrap_or_default();
    let operand = explanation.operand.as_ref();
    attributes
        .text("coroner.fault.kind", Some(explanation.kind.name()))
        .text("coroner.fault.certainty", Some(explanation.certainty.name()))
        .text("coroner.fault.access", access.kind.and_then(Access::name))
        .set("coroner.fault.width", access.width)
        .text("coroner.fault.address", access.address.map(|address| address.to_string()))
        .text("coroner.fault.register", operand.and_then(|operand| operand.register.as_ref()))
        .text("coroner.fault.value", operand.and_then(|operand| operand.value).map(|value| value.to_string()))
        .set("coroner.fault.offset", operand.and_then(|operand| operand.displacement))
        .text("coroner.fault.pattern", operand.and_then(|operand| operand.pattern.as_ref()))
        .text(
            "coroner.fault.instruction",
            explanation.instruction.as_ref().map(|instruction| instruction.text.as_str()),
        )
        .text("coroner.fault.variable", explanation.variable.as_ref().map(|variable| &variable.name))
        .text("coroner.fault.accessed", explanation.variable.as_ref().and_then(|variable| variable.accessed.as_ref()))
        .text("coroner.fault.function", explanation.function.as_ref())
        .list("coroner.fault.facts", explanation.facts.iter().map(|fact| fact.as_str().into()));
}

/// Formats the other threads' stacks, as far as they fit.
fn other_stacks(report: &Report) -> Option<String> {
    let reported = reported_thread(report).map(|thread| thread.tid);
    let mut text = String::new();
    let others: Vec<&Thread> = report.threads.iter().filter(|thread| Some(thread.tid) != reported).collect();
    for (place, thread) in others.iter().enumerate() {
        let name = thread.name.as_deref().unwrap_or_default();
        let mut one = format!("Thread {} {name}", thread.tid).trim_end().to_owned();
        one.push('\n');
        write(&mut one, &thread.frames, &thread.skipped);
        if text.len() + one.len() > MAX_OTHER_STACKS {
            text.push_str(&format!("{} more threads omitted\n", others.len() - place));
            break;
        }
        text.push_str(&one);
    }
    (!text.is_empty()).then_some(text)
}

/// Returns the images of the report's stack with their debug ids, for symbolication elsewhere.
fn images(report: &Report) -> Vec<Field> {
    let index = ImageIndex::new(&report.images);
    let frames = stack(report).unwrap_or_default();
    let mut used: Vec<usize> = frames.iter().filter_map(|frame| index.find(frame.lookup_address())).collect();
    used.sort_unstable();
    used.dedup();
    let images = used.into_iter().filter_map(|image| report.images.get(image));
    images
        .map(|image| {
            let mut path = image.path.clone();
            hide_home(&mut path);
            let mut attributes = Attributes::default();
            attributes
                .text("path", Some(path))
                .text("debug_id", image.debug_id())
                .text("code_id", image.code_id())
                .text("load_address", Some(image.load_address.to_string()))
                .set("size", Some(image.size));
            attributes.into()
        })
        .collect()
}

/// Returns the ids of the app's current trace and span as bytes; empty if the app set none.
fn trace(run: &RunFacts) -> (Vec<u8>, Vec<u8>) {
    let Some(trace) = run.contexts.get("trace").map(coroner_report::model::Value::to_json) else {
        return <_>::default();
    };
    let id = |key: &str, length: usize| {
        let bytes = trace[key].as_str().and_then(|digits| digits.parse::<coroner_report::model::Bytes>().ok());
        bytes.map(|bytes| bytes.0).filter(|bytes| bytes.len() == length && bytes.iter().any(|byte| *byte != 0))
    };
    match id("trace_id", 16) {
        // A span is only valid within a trace.
        Some(trace) => (trace, id("span_id", 8).unwrap_or_default()),
        None => <_>::default(),
    }
}

/// Adds the scope set by the app. Its tags keep their own names, unless a name is already used.
fn scope(run: &RunFacts, attributes: &mut Attributes) {
    let session = run.session.as_ref().map_or(run.run_id, |session| session.id);
    attributes.text("session.id", (!session.is_nil()).then(|| session.hyphenated()));
    user(run, attributes);
    attributes.list("coroner.fingerprint", run.fingerprint.iter().map(|part| part.as_str().into()));
    attributes.list("coroner.breadcrumbs", run.breadcrumbs.iter().map(breadcrumb));
    for (name, context) in run.contexts.iter().filter(|(name, _)| *name != "trace") {
        attributes.set(&format!("coroner.context.{name}"), Some(context));
    }
    for (key, value) in &run.extra {
        attributes.set(&format!("coroner.extra.{key}"), Some(value));
    }
    for (key, value) in &run.tags {
        attributes.text(key, Some(value));
    }
}

fn user(run: &RunFacts, attributes: &mut Attributes) {
    let Some(serde_json::Value::Object(fields)) = run.user.as_ref().map(coroner_report::model::Value::to_json) else {
        return;
    };
    for (key, value) in fields {
        let text = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
        let name = match key.as_str() {
            "id" => "user.id".to_owned(),
            "username" => "user.name".to_owned(),
            "name" => "user.full_name".to_owned(),
            "email" => "user.email".to_owned(),
            "ip_address" => "client.address".to_owned(),
            _ => format!("coroner.user.{key}"),
        };
        attributes.text(&name, (!value.is_null()).then_some(text));
    }
}

fn breadcrumb(left: &Breadcrumb) -> Field {
    let mut attributes = Attributes::default();
    attributes
        .text("time", Some(left.time.to_string()))
        .text("type", left.kind.as_ref())
        .text("category", left.category.as_ref())
        .text("message", left.message.as_ref())
        .text("level", left.level.name())
        .set("data", left.data.as_ref())
        .set("times", (left.repetitions > 0).then_some(left.repetitions + 1));
    attributes.into()
}
