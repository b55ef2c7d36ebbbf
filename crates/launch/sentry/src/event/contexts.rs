//! Contexts: app, system, device, and those set by the app.

use coroner_report::model::{Address, Explanation, Report, RunFacts};
use coroner_report::run_state::{Foreground, ThermalState};
use coroner_report::wire::{Access, Os};
use serde_json::{Map, Value, json};

use super::time_text;

/// The contexts that Coroner fills in.
pub const OWN_CONTEXTS: [&str; 7] = ["app", "device", "os", "runtime", "culture", "coroner", "fault"];

/// A context under construction; contains only known values.
struct Context(Map<String, Value>);

impl Context {
    fn new(kind: &str) -> Self {
        Self(Map::from_iter([("type".to_owned(), kind.into())]))
    }

    fn set<T: Into<Value>>(&mut self, key: &str, value: Option<T>) -> &mut Self {
        if let Some(value) = value {
            self.0.insert(key.to_owned(), value.into());
        }
        self
    }

    /// Adds the context unless it is empty. Its values override those set by the app.
    fn add(self, contexts: &mut Map<String, Value>, name: &str) {
        match contexts.get_mut(name) {
            Some(Value::Object(set)) => set.extend(self.0),
            _ if self.0.len() > 1 => drop(contexts.insert(name.to_owned(), Value::Object(self.0))),
            _ => {}
        }
    }
}

/// Returns a report's contexts. `unidentified` are images without an id, `left_out` the numbers of
/// omitted frames.
pub(super) fn from_report(
    report: &Report,
    unidentified: Vec<String>,
    left_out: Map<String, Value>,
) -> Map<String, Value> {
    let mut contexts = Map::new();
    let empty = RunFacts::default();
    let run = report.run.as_ref().unwrap_or(&empty);
    // Add the app's contexts first: Coroner's values override them.
    for (name, value) in &run.contexts {
        let value = match value.to_json() {
            Value::Object(map) => map,
            other => Map::from_iter([("value".to_owned(), other)]),
        };
        contexts.insert(name.clone(), Value::Object(value));
    }
    app(run).add(&mut contexts, "app");
    os(report, run).add(&mut contexts, "os");
    device(report, run).add(&mut contexts, "device");
    let mut runtime = Context::new("runtime");
    runtime.set("name", run.app.runtime_name.clone()).set("version", run.app.runtime_version.clone());
    runtime.add(&mut contexts, "runtime");
    let mut culture = Context::new("culture");
    culture.set("locale", run.device.locale.clone()).set("timezone", run.device.time_zone.clone());
    culture.add(&mut contexts, "culture");
    coroner(report, unidentified, left_out).add(&mut contexts, "coroner");
    if let Some(explanation) = report.explanation.as_ref().filter(|explanation| explanation.kind.is_fault()) {
        fault(explanation).add(&mut contexts, "fault");
    }
    if !contexts.contains_key("trace") {
        trace(report, run).add(&mut contexts, "trace");
    }
    contexts
}

/// Returns the trace of an event of an app that set none: all events of a run belong to one trace,
/// whose id is the run's.
fn trace(report: &Report, run: &RunFacts) -> Context {
    let mut context = Context::new("trace");
    let Some(trace) = [report.header.run_id, run.run_id].into_iter().find(|id| !id.is_nil()) else { return context };
    let event = Some(report.event_id()).filter(|id| !id.is_nil()).unwrap_or(trace);
    let span = event.to_string().get(16..).unwrap_or_default().to_owned();
    if span.bytes().any(|digit| digit != b'0') {
        context.set("trace_id", Some(trace.to_string())).set("span_id", Some(span));
    }
    context
}

fn app(run: &RunFacts) -> Context {
    let mut context = Context::new("app");
    let facts = &run.app;
    let in_foreground = match run.lifecycle.foreground {
        Foreground::FOREGROUND => Some(true),
        Foreground::BACKGROUND => Some(false),
        _ => None,
    };
    context
        .set("app_identifier", facts.id.clone())
        .set("app_name", facts.name.clone())
        .set("app_version", facts.version.clone())
        .set("app_build", facts.build.clone())
        .set("app_start_time", facts.installed.or(facts.process_start).map(time_text))
        .set("app_memory", run.lifecycle.memory_used)
        .set("free_memory", run.lifecycle.memory_available)
        .set("in_foreground", in_foreground);
    context
}

fn os(report: &Report, run: &RunFacts) -> Context {
    let mut context = Context::new("os");
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
    context
        .set("name", name)
        .set("version", facts.version.clone())
        .set("build", facts.build.clone())
        .set("kernel_version", facts.kernel_version.clone())
        .set("rooted", facts.rooted)
        .set("distribution_name", facts.distribution.clone())
        .set("distribution_version", facts.distribution_version.clone());
    context
}

fn device(report: &Report, run: &RunFacts) -> Context {
    let mut context = Context::new("device");
    let facts = &run.device;
    let arch = facts.arch.clone().or_else(|| report.header.arch.map(|arch| arch.name().to_owned()));
    context
        .set("arch", arch)
        .set("model", facts.model.clone())
        .set("family", facts.family.clone())
        .set("cpu_description", facts.cpu.clone())
        .set("processor_count", facts.processor_count)
        .set("memory_size", facts.memory_size)
        .set("boot_time", facts.boot_time.map(time_text))
        .set("simulator", facts.simulator);
    if let Some(state) = &run.device_state {
        context
            .set("free_memory", state.memory_free)
            .set("storage_size", state.storage_size)
            .set("free_storage", state.storage_free)
            .set("battery_level", state.battery_percent.map(f64::from))
            .set("charging", state.charging)
            .set("thermal_state", state.thermal.and_then(ThermalState::name));
    }
    context
}

/// Describes the report itself: how long writing it took, what is missing.
fn coroner(report: &Report, unidentified: Vec<String>, left_out: Map<String, Value>) -> Context {
    let mut context = Context::new("coroner");
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
    let not_captured: Map<String, Value> = report
        .threads
        .iter()
        .filter_map(|thread| Some((thread.tid.to_string(), thread.not_captured?.to_string().into())))
        .collect();
    context
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
        .set("flags", some(report.crash.iter().flat_map(|crash| &crash.flags).map(|flag| flag_name(*flag)).collect()));
    context
}

/// The explanation of the crash: numbers and texts that a server shows unchanged.
fn fault(explanation: &Explanation) -> Context {
    let mut context = Context::new("fault");
    let hexadecimal = |address: Address| address.to_string();
    let access = explanation.access.unwrap_or_default();
    let operand = explanation.operand.as_ref();
    let recursion = explanation.recursion.as_ref();
    context
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
        .set("facts", Some(explanation.facts.join("; ")).filter(|facts| !facts.is_empty()));
    context
}

fn flag_name(flag: coroner_report::model::CrashFlag) -> String {
    serde_json::to_value(flag).ok().and_then(|name| name.as_str().map(ToOwned::to_owned)).unwrap_or_default()
}
