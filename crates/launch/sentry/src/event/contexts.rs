//! Contexts: app, system, device, and those set by the app.

use std::collections::BTreeMap;

use coroner_report::model::{Address, Explanation, Report, RunFacts};
use coroner_report::run_state::Foreground;
use coroner_report::wire::{Access, Os};
use sentry_types::protocol::v7::{
    AppContext, Context, DeviceContext, Map, OsContext, RuntimeContext, SpanId, TraceContext, TraceId,
};
use serde_json::{Value, json};

use super::{Event, micros, time_text};

type Object = serde_json::Map<String, Value>;

/// Known values under construction, of a context that `sentry-types` lacks or beside its fields.
#[derive(Default)]
struct Values(Map<String, Value>);

impl Values {
    fn set<T: Into<Value>>(mut self, key: &str, value: Option<T>) -> Self {
        if let Some(value) = value {
            self.0.insert(key.to_owned(), value.into());
        }
        self
    }
}

/// Adds a report's contexts to the event. `unidentified` are images without an id, `left_out` the
/// numbers of omitted frames.
pub(super) fn add(event: &mut Event, report: &Report, unidentified: Vec<String>, left_out: Object) {
    let empty = RunFacts::default();
    let run = report.run.as_ref().unwrap_or(&empty);
    let mut set: BTreeMap<String, Object> = BTreeMap::new();
    for (name, value) in &run.contexts {
        let value = match value.to_json() {
            Value::Object(map) => map,
            other => Object::from_iter([("value".to_owned(), other)]),
        };
        set.insert(name.clone(), value);
    }
    let runtime = RuntimeContext {
        name: run.app.runtime_name.clone(),
        version: run.app.runtime_version.clone(),
        ..RuntimeContext::default()
    };
    let culture =
        Values::default().set("locale", run.device.locale.clone()).set("timezone", run.device.time_zone.clone());
    let explanation = report.explanation.as_ref().filter(|explanation| explanation.kind.is_fault());
    let own = [
        ("app", Some(app(run).into())),
        ("os", Some(os(report, run).into())),
        ("device", Some(device(report, run).into())),
        ("runtime", Some(runtime.into())),
        ("culture", Some(Context::Other(culture.0))),
        ("coroner", Some(Context::Other(coroner(report, unidentified, left_out).0))),
        ("fault", explanation.map(|explanation| Context::Other(fault(explanation).0))),
        ("trace", trace(report, run).filter(|_| !set.contains_key("trace")).map(Into::into)),
    ];
    for (name, context) in own {
        let Some(Ok(Value::Object(mut values))) = context.as_ref().map(serde_json::to_value) else { continue };
        values.remove("type");
        if let Some(set) = set.get_mut(name) {
            // Coroner's values override the app's.
            set.remove("type");
            set.extend(values);
        } else if !values.is_empty() {
            event.contexts.extend(context.map(|context| (name.to_owned(), context)));
        }
    }
    for (name, mut values) in set {
        event.extensions.contexts.extend(values.remove("type").map(|kind| (name.clone(), kind)));
        event.contexts.insert(name, Context::Other(values.into_iter().collect()));
    }
}

/// Returns the trace of an event of an app that set none: all events of a run belong to one trace,
/// whose id is the run's.
fn trace(report: &Report, run: &RunFacts) -> Option<TraceContext> {
    let trace = [report.header.run_id, run.run_id].into_iter().find(|id| !id.is_nil())?;
    let event = Some(report.event_id()).filter(|id| !id.is_nil()).unwrap_or(trace);
    let span = *event.0.last_chunk::<8>()?;
    let (trace_id, span_id) = (TraceId::from(trace.0), SpanId::from(span));
    (span != [0; 8]).then(|| TraceContext { trace_id, span_id, ..TraceContext::default() })
}

fn app(run: &RunFacts) -> AppContext {
    let facts = &run.app;
    let in_foreground = match run.lifecycle.foreground {
        Foreground::FOREGROUND => Some(true),
        Foreground::BACKGROUND => Some(false),
        _ => None,
    };
    let other = Values::default()
        .set("app_memory", run.lifecycle.memory_used)
        .set("free_memory", run.lifecycle.memory_available)
        .set("in_foreground", in_foreground);
    AppContext {
        app_identifier: facts.id.clone(),
        app_name: facts.name.clone(),
        app_version: facts.version.clone(),
        app_build: facts.build.clone(),
        app_start_time: facts.installed.or(facts.process_start).map(micros),
        other: other.0,
        ..AppContext::default()
    }
}

fn os(report: &Report, run: &RunFacts) -> OsContext {
    let facts = &run.os;
    let name = facts.name.clone().or_else(|| {
        let name = match report.header.os {
            Os::LINUX => "Linux",
            Os::ANDROID => "Android",
            Os::MACOS => "macOS",
            Os::IOS => "iOS",
            Os::TVOS => "tvOS",
            Os::WATCHOS => "watchOS",
            Os::VISIONOS => "visionOS",
            Os::WINDOWS => "Windows",
            Os::FREEBSD => "FreeBSD",
            _ => return None,
        };
        Some(name.to_owned())
    });
    let other = Values::default()
        .set("distribution_name", facts.distribution.clone())
        .set("distribution_version", facts.distribution_version.clone());
    OsContext {
        name,
        version: facts.version.clone(),
        build: facts.build.clone(),
        kernel_version: facts.kernel_version.clone(),
        rooted: facts.rooted,
        other: other.0,
    }
}

fn device(report: &Report, run: &RunFacts) -> DeviceContext {
    let (facts, state) = (&run.device, run.device_state.as_ref());
    let other = Values::default()
        .set("cpu_description", facts.cpu.clone())
        .set("processor_count", facts.processor_count)
        .set("charging", state.and_then(|state| state.charging))
        .set("thermal_state", state.and_then(|state| state.thermal?.name()));
    DeviceContext {
        arch: facts.arch.clone().or_else(|| report.header.arch.map(|arch| arch.name().to_owned())),
        model: facts.model.clone(),
        family: facts.family.clone(),
        memory_size: facts.memory_size,
        boot_time: facts.boot_time.map(micros),
        simulator: facts.simulator,
        free_memory: state.and_then(|state| state.memory_free),
        storage_size: state.and_then(|state| state.storage_size),
        free_storage: state.and_then(|state| state.storage_free),
        battery_level: state.and_then(|state| state.battery_percent).map(f32::from),
        other: other.0,
        ..DeviceContext::default()
    }
}

/// Describes the report itself: how long writing it took, what is missing.
fn coroner(report: &Report, unidentified: Vec<String>, left_out: Object) -> Values {
    let problems: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
    let run_problems = report.run.iter().flat_map(|run| &run.problems).map(ToString::to_string);
    let problems: Vec<String> = problems.into_iter().chain(run_problems).collect();
    let some = |list: Vec<String>| Some(list).filter(|list| !list.is_empty());
    let annotations: Vec<Value> = report
        .annotations
        .iter()
        .map(|annotation| json!({ "source": annotation.source, "text": annotation.text }))
        .collect();
    let second: Vec<Value> =
        report.crash.iter().flat_map(|crash| &crash.concurrent_crashes).map(|second| json!(second)).collect();
    let not_captured: Object = report
        .threads
        .iter()
        .filter_map(|thread| Some((thread.tid.to_string(), thread.not_captured?.to_string().into())))
        .collect();
    Values::default()
        .set("complete", report.crash.is_some().then_some(report.complete))
        .set("run_id", Some(report.header.run_id).filter(|id| !id.is_nil()).map(|id| id.to_string()))
        .set("capture_us", report.end.as_ref().map(|end| end.total_ns / 1000))
        .set("device_read", report.run.as_ref().and_then(|run| run.device_state.as_ref()?.read).map(time_text))
        .set("since_install_ms", report.crash.as_ref().map(|crash| crash.since_install_ns / 1_000_000))
        .set("problems", some(problems))
        .set("images_without_identity", some(unidentified))
        .set("frames_left_out", Some(left_out).filter(|frames| !frames.is_empty()))
        .set("threads_not_captured", Some(not_captured).filter(|threads| !threads.is_empty()))
        .set("annotations", Some(annotations).filter(|list| !list.is_empty()))
        .set("concurrent_crashes", Some(second).filter(|list| !list.is_empty()))
        .set("flags", some(report.crash.iter().flat_map(|crash| &crash.flags).map(|flag| flag_name(*flag)).collect()))
}

/// The explanation of the crash: numbers and texts that a server shows unchanged.
fn fault(explanation: &Explanation) -> Values {
    let hexadecimal = |address: Address| address.to_string();
    let access = explanation.access.unwrap_or_default();
    let operand = explanation.operand.as_ref();
    let recursion = explanation.recursion.as_ref();
    Values::default()
        .set("kind", Some(explanation.kind.name()))
        .set("certainty", Some(explanation.certainty.name()))
        .set("access", access.kind.and_then(Access::name))
        .set("width", access.width)
        .set("address", access.address.map(hexadecimal))
        .set("register", operand.and_then(|operand| operand.register.clone()))
        .set("value", operand.and_then(|operand| operand.value).map(hexadecimal))
        .set("offset", operand.and_then(|operand| operand.displacement))
        .set("pattern", operand.and_then(|operand| operand.pattern.clone()))
        .set("instruction", explanation.instruction.as_ref().map(|instruction| instruction.text.clone()))
        .set("variable", explanation.variable.as_ref().map(|variable| variable.name.clone()))
        .set("accessed", explanation.variable.as_ref().and_then(|variable| variable.accessed.clone()))
        .set("last_set", explanation.last_set.as_ref().map(|set| set.instruction.text.clone()))
        .set("call", explanation.call.as_ref().map(|call| call.text.clone()))
        .set("function", explanation.function.clone())
        .set("recursion", recursion.map(|recursion| recursion.functions.join(", ")))
        .set("rounds", recursion.map(|recursion| recursion.rounds))
        .set("bytes_per_round", recursion.and_then(|recursion| recursion.bytes))
        .set("facts", Some(explanation.facts.join("; ")).filter(|facts| !facts.is_empty()))
}

fn flag_name(flag: coroner_report::model::CrashFlag) -> String {
    serde_json::to_value(flag).ok().and_then(|name| name.as_str().map(ToOwned::to_owned)).unwrap_or_default()
}
