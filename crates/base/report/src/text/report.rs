//! Writes a report as text.

use super::{Sink, Style, TextOptions, ThreadFilter, registers};
use crate::model::{
    Address, Crash, CrashFlag, Exception, GENERAL_PROTECTION_FAULT, Image, InApp, Report, RunFacts, Thread,
};
use crate::wire::{Monitor, WalkEnd};
use std::fmt::{self, Write as _};
use std::time::Duration;

/// Width of the field names.
const LABEL: usize = 14;

/// Writes one report.
pub(super) struct Writer<'a> {
    pub(super) sink: &'a mut dyn Sink,
    pub(super) report: &'a Report,
    pub(super) options: &'a TextOptions,
    pub(super) in_app: InApp<'a>,
}

impl Writer<'_> {
    pub(super) fn all(mut self) -> fmt::Result {
        self.identity()?;
        if let Some(crash) = &self.report.crash {
            self.crash(crash)?;
        }
        for exception in &self.report.exceptions {
            self.exception(exception)?;
        }
        let threads = self.options.threads.threads(self.report);
        for (place, thread) in &threads {
            self.thread(*place, thread)?;
        }
        let shown = threads.len();
        if shown < self.report.threads.len() {
            let others = self.report.threads.len() - shown;
            let all = count(self.report.threads.len() as u64, "thread");
            self.line(Style::Faint, &format!("\n{others} of {all} not shown\n"))?;
        }
        if self.options.registers {
            self.registers()?;
        }
        if let Some(run) = self.report.run.as_ref().filter(|_| self.options.scope) {
            self.scope(run)?;
        }
        if self.options.images {
            self.images()?;
        }
        self.outcome()
    }

    pub(super) fn line(&mut self, style: Style, text: &str) -> fmt::Result {
        self.sink.piece(style, text)
    }

    fn heading(&mut self, text: &str) -> fmt::Result {
        self.line(Style::Plain, "\n")?;
        self.line(Style::Heading, text)?;
        self.line(Style::Plain, "\n")
    }

    /// Writes a field on its own line, unless it is empty.
    fn field(&mut self, label: &str, style: Style, value: &str) -> fmt::Result {
        if value.is_empty() {
            return Ok(());
        }
        self.line(Style::Label, &format!("{:<LABEL$}", format!("{label}:")))?;
        self.line(Style::Plain, " ")?;
        // Multi-line values stay in their column.
        self.line(style, &value.trim_end().replace('\n', &format!("\n{:LABEL$} ", "")))?;
        self.line(Style::Plain, "\n")
    }

    fn identity(&mut self) -> fmt::Result {
        let report = self.report;
        let header = &report.header;
        self.field("Report", Style::Heading, &header.event_id.to_string())?;
        let process = match (header.process_name.as_str(), header.pid) {
            ("", 0) => String::new(),
            (name, pid) if header.ppid == 0 => format!("{name} [{pid}]"),
            (name, pid) => format!("{name} [{pid}], child of [{}]", header.ppid),
        };
        self.field("Process", Style::Plain, process.trim_start())?;
        if let Some(main) = report.images.iter().find(|image| image.is_main) {
            self.field("Path", Style::Plain, &main.path)?;
        }
        let replaced: Vec<&str> =
            report.images.iter().filter(|image| image.replaced).map(|image| &*image.path).collect();
        if !replaced.is_empty() {
            let what = format!("replaced or deleted while the process ran: {}", replaced.join(", "));
            self.field("Note", Style::Warning, &what)?;
        }
        let app = report.run.as_ref().map(|run| &run.app);
        if let Some(app) = app {
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            let build = app.build.as_ref().map_or_else(String::new, |build| format!("({build})"));
            let parts = [text(&app.name), text(&app.id), text(&app.version), build];
            self.field("App", Style::Plain, &joined(&parts))?;
            self.field("Release", Style::Plain, &text(&app.release))?;
            self.field("Environment", Style::Plain, &text(&app.environment))?;
        }
        let system = match report.run.as_ref().map(|run| (&run.os, &run.device)) {
            Some((os, device)) => joined(&[
                os.name.clone().unwrap_or_else(|| header.os.to_string()),
                os.version.clone().unwrap_or_default(),
                os.build.as_ref().map_or_else(String::new, |build| format!("({build})")),
                os.distribution.clone().unwrap_or_default(),
                os.distribution_version.clone().unwrap_or_default(),
                header.arch.map_or(device.arch.as_deref().unwrap_or_default(), |arch| arch.name()).to_owned(),
                device.model.as_ref().map_or_else(String::new, |model| format!("on {model}")),
            ]),
            None if header.os.0 == 0 => String::new(),
            None => joined(&[header.os.to_string(), header.arch.map_or("", |arch| arch.name()).to_owned()]),
        };
        self.field("System", Style::Plain, &system)?;
        if let Some(crash) = report.crash.as_ref().filter(|crash| crash.time.0 != 0) {
            let mut when = crash.time.to_string();
            // Not known for a crash reported by the system itself.
            if !header.sdk_version.is_empty() || crash.since_install_ns > 0 {
                write!(when, ", {} after install", duration(crash.since_install_ns))?;
            }
            let start = header.process_start.0;
            if start > 0 && start <= crash.time.0 {
                write!(when, ", {} after the process started", duration(crash.time.0 - start))?;
            }
            self.field("Time", Style::Plain, &when)?;
        }
        self.field("Coroner", Style::Faint, &header.sdk_version)
    }

    fn crash(&mut self, crash: &Crash) -> fmt::Result {
        self.heading("What happened")?;
        let fatal = if crash.has(CrashFlag::NotFatal) { Style::Warning } else { Style::Alarm };
        if crash.has(CrashFlag::StackOverflow) {
            self.field("Cause", fatal, "stack overflow")?;
        }
        if let Some(mach) = &crash.mach {
            let name = mach.name.map_or_else(|| format!("exception {}", mach.exception), str::to_owned);
            let subcode = (!mach.unknown_codes).then(|| format!("subcode {:#x}", mach.subcode));
            let parts: Vec<String> = [Some(name), mach.code_text(), subcode].into_iter().flatten().collect();
            self.field("Exception", fatal, &parts.join(", "))?;
        }
        if let Some(signal) = crash.signal.as_ref().filter(|_| crash.monitor == Monitor::SEH) {
            let code = format!("{:#010x}", signal.number.cast_unsigned());
            let (what, code) = if signal.number < 32 && signal.number > 0 {
                ("Signal", signal.number.to_string())
            } else {
                ("Exception", code)
            };
            let text = signal.name.map_or_else(|| code.clone(), |name| format!("{name} ({code})"));
            self.field(what, fatal, &text)?;
        } else if let Some(signal) = &crash.signal {
            let name = signal.name.map_or_else(String::new, |name| format!("{name} "));
            let mut text = format!("{name}({})", signal.number);
            if let Some(code) = signal.code_text() {
                write!(text, ", {code}")?;
            }
            if let Some(pid) = signal.sender_pid {
                write!(text, ", sent by process {pid}")?;
                if let Some(uid) = signal.sender_uid {
                    write!(text, " of user {uid}")?;
                }
            }
            if signal.errno != 0 {
                write!(text, ", errno {}", signal.errno)?;
            }
            if let Some(syscall) = signal.syscall {
                write!(text, ", system call {}", system_call(signal.syscall_name, syscall.into()))?;
            }
            self.field("Signal", fatal, &text)?;
        }
        if let Some(address) = crash.address {
            let access = crash.access.map_or_else(String::new, |access| format!(" ({access})"));
            let place =
                self.report.image_at(address).map_or_else(String::new, |image| format!(", in {}", image.name()));
            // arm64: a pointer's top byte is not part of the address.
            let pointer = crash.signal.as_ref().and_then(|signal| signal.address);
            let tagged = pointer.filter(|pointer| *pointer != address && pointer.0 << 8 == address.0 << 8);
            let tag = tagged
                .map_or_else(String::new, |pointer| format!(", through a pointer with tag {:#04x}", pointer.0 >> 56));
            self.field("Address", Style::Address, &format!("{address}{access}{tag}{place}"))?;
        } else if crash.is_address_unknown() {
            let general_protection = self.report.is_general_protection_fault();
            let text =
                if general_protection { GENERAL_PROTECTION_FAULT } else { "unknown (not reported by the system)" };
            self.field("Address", Style::Address, text)?;
        }
        if let Some(hang) = &crash.hang {
            let how_long = match hang.duration() {
                (lasted, true) => format!("for {}", duration(lasted.as_nanos() as u64)),
                (lasted, false) => format!("for at least {}", duration(lasted.as_nanos() as u64)),
            };
            let end = if crash.has(CrashFlag::NotFatal) { "" } else { ", until the process was terminated" };
            // The system's own report of a hang doesn't contain its duration.
            let how_long =
                if hang.lasted_ns == 0 && hang.duration_ns.is_none() { String::new() } else { format!(" {how_long}") };
            self.field("Hang", fatal, &format!("the thread did not respond{how_long}{end}"))?;
        }
        if let Some(kind) = &crash.exception_type {
            self.field("Type", fatal, kind)?;
        }
        let abort_message = self.report.abort_message();
        if let Some(message) = crash.message.as_deref().or(abort_message) {
            self.field("Message", fatal, message)?;
        }
        if let Some(location) = &crash.location {
            self.field("Location", Style::Source, location)?;
        }
        let is_shown =
            |text: &str| abort_message == Some(text) || crash.message.as_deref().map(str::trim) == Some(text);
        for annotation in self.report.annotations.iter().filter(|annotation| !is_shown(annotation.text.trim())) {
            self.field("Annotation", Style::Plain, &format!("{} ({})", annotation.text.trim_end(), annotation.source))?;
        }
        for memory in &self.report.app_memory {
            let bytes = count(memory.bytes.0.len() as u64, "byte");
            self.field("App memory", Style::Plain, &format!("`{}`, {bytes}", memory.name))?;
        }
        if let Some(found) = self.report.run.as_ref().and_then(|run| run.termination.as_ref()) {
            self.field("Later", Style::Plain, &format!("the process {found}"))?;
        }
        let place = self.report.threads.iter().position(|thread| thread.tid == crash.tid);
        let thread = match place {
            Some(place) => format!("{place}, {}", thread_name(&self.report.threads[place])),
            None => format!("{}, which is not in the report", crash.tid),
        };
        self.field("Thread", Style::Plain, &thread)?;
        for concurrent in &crash.concurrent_crashes {
            let name = concurrent.name.map_or_else(|| format!("signal {}", concurrent.signal), str::to_owned);
            let at = concurrent.address.map_or_else(String::new, |address| format!(" at {address}"));
            let after = concurrent.after_ns.map_or_else(String::new, |ns| format!(", {} later", duration(ns)));
            self.field("Also", fatal, &format!("thread {} crashed: {name}{at}{after}", concurrent.tid))?;
        }
        let facts = [
            (CrashFlag::Recrash, "the crash handler itself crashed while writing this report"),
            (CrashFlag::BadStackPointer, "the stack pointer was not in readable memory"),
            (CrashFlag::ForkChild, "the process was a forked child with its parent's Coroner installation"),
            (CrashFlag::NotFatal, "the process continued"),
        ];
        for (flag, what) in facts {
            if crash.has(flag) {
                self.field("Note", Style::Warning, what)?;
            }
        }
        Ok(())
    }

    fn exception(&mut self, exception: &Exception) -> fmt::Result {
        match (&exception.type_name, &exception.message) {
            // Nothing was thrown: `std::terminate` was called.
            (None, Some(message)) if exception.frames.is_empty() => self.heading(message)?,
            (kind, message) => {
                let kind = kind.as_deref().unwrap_or("exception");
                self.heading(&format!("Thrown: {kind} ({})", exception.language))?;
                self.field("Message", Style::Alarm, message.as_deref().unwrap_or_default())?;
            }
        }
        if let Some(location) = &exception.location {
            self.field("Location", Style::Source, location)?;
        }
        if let Some(info) = &exception.user_info {
            self.field("User info", Style::Plain, info)?;
        }
        self.frames_of_exception(&exception.frames, &exception.skipped)
    }

    /// Returns the verb for the thread that the report is about.
    fn what_it_did(&self) -> &'static str {
        match &self.report.crash {
            Some(crash) if crash.monitor == Monitor::HANG => " hung",
            // A signal is a crash even if a handler repaired the fault.
            Some(crash) if crash.has(CrashFlag::NotFatal) && crash.signal.is_none() && crash.mach.is_none() => {
                " reported"
            }
            _ => " crashed",
        }
    }

    fn thread(&mut self, place: usize, thread: &Thread) -> fmt::Result {
        self.line(Style::Plain, "\n")?;
        let style = if thread.crashed { Style::Alarm } else { Style::Heading };
        let did = if thread.crashed { self.what_it_did() } else { "" };
        self.line(style, &format!("Thread {place}{did}"))?;
        self.line(Style::Plain, &format!(": {}", thread_name(thread)))?;
        if let Some(queue) = &thread.queue {
            self.line(Style::Plain, &format!(", queue {queue}"))?;
        }
        if let Some(state) = thread.state {
            let name = |number| format!(" in system call {}", system_call(thread.syscall_name, number));
            let syscall = thread.syscall.map_or_else(String::new, name);
            self.line(Style::Faint, &format!(", {state}{syscall}"))?;
        }
        self.line(Style::Plain, "\n")?;
        if let Some(reason) = thread.not_captured {
            let reason = reason.to_string().replace('_', " ");
            self.line(Style::Warning, &format!("     not captured: {reason}\n"))?;
        }
        // A signal's stack is the thread's own.
        let is_signal = self.report.crash.as_ref().is_some_and(|crash| crash.signal.is_some() || crash.mach.is_some());
        let exceptions = if thread.crashed && !is_signal { &self.report.exceptions[..] } else { &[] };
        if let Some(exception) = exceptions.first().filter(|exception| thread.has_frames_of(exception)) {
            let kind = exception.type_name.as_deref().unwrap_or("exception");
            self.line(Style::Faint, &format!("     same stack as the {kind} above\n"))?;
            return self.below_stack(thread);
        }
        match exceptions {
            [] => self.frames(&thread.frames, &thread.skipped)?,
            _ => self.frames_of_exception(&thread.frames, &thread.skipped)?,
        }
        if let Some(end) = thread.walk_end.filter(|end| *end != WalkEnd::ROOT) {
            let why = end.to_string().replace('_', " ");
            self.line(Style::Faint, &format!("     stack walk ended: {why}\n"))?;
        }
        self.below_stack(thread)
    }

    fn below_stack(&mut self, thread: &Thread) -> fmt::Result {
        match &self.options.below_stack {
            Some(text) if thread.crashed => self.line(Style::Warning, &format!("     {text}\n")),
            _ => Ok(()),
        }
    }

    fn registers(&mut self) -> fmt::Result {
        let by_number = matches!(self.options.threads, ThreadFilter::Number(_));
        for (place, thread) in self.options.threads.threads(self.report) {
            let Some(values) = thread.registers.as_ref().filter(|_| thread.crashed || by_number) else { continue };
            self.heading(&format!("Registers of thread {place}"))?;
            registers::write(self.sink, values, self.options.width)?;
        }
        Ok(())
    }

    fn scope(&mut self, run: &RunFacts) -> fmt::Result {
        if !run.tags.is_empty() {
            self.heading("Tags")?;
            for (key, value) in &run.tags {
                self.field(key, Style::Plain, value)?;
            }
        }
        let user = run.user.iter().map(|user| ("user", user));
        let contexts = run.contexts.iter().chain(&run.extra).map(|(key, value)| (key.as_str(), value));
        let values: Vec<_> = user.chain(contexts).collect();
        if !values.is_empty() {
            self.heading("Contexts")?;
            for (key, value) in values {
                self.field(key, Style::Plain, &value.to_json().to_string())?;
            }
        }
        if !run.breadcrumbs.is_empty() {
            self.heading("Breadcrumbs (most recent last)")?;
            for breadcrumb in &run.breadcrumbs {
                self.line(Style::Faint, &format!("{} ", breadcrumb.time))?;
                let category = breadcrumb.category.as_ref().or(breadcrumb.kind.as_ref());
                let category = category.map_or_else(String::new, |category| format!("{category}: "));
                let level = if breadcrumb.level.0 == 0 { String::new() } else { format!("[{}] ", breadcrumb.level) };
                let message = breadcrumb.message.as_deref().unwrap_or_default();
                let data = breadcrumb.data.as_ref().map_or_else(String::new, |data| format!(" {}", data.to_json()));
                let times = match breadcrumb.repetitions {
                    0 => String::new(),
                    repetitions => format!(" ({} times)", repetitions + 1),
                };
                self.line(Style::Plain, &format!("{level}{category}{message}{data}{times}\n"))?;
            }
        }
        Ok(())
    }

    fn images(&mut self) -> fmt::Result {
        if self.report.images.is_empty() {
            return Ok(());
        }
        self.heading("Loaded images")?;
        let mut images: Vec<&Image> = self.report.images.iter().collect();
        images.sort_unstable_by_key(|image| image.load_address);
        let width = images.iter().map(|image| image.name().chars().count()).max().unwrap_or(0).min(32);
        for image in images {
            let end = image.load_address.0.wrapping_add(image.size);
            self.line(Style::Address, &format!("{:#018x} - {end:#018x}", image.load_address.0))?;
            self.line(Style::Module, &format!(" {:width$}", image.name()))?;
            let id = image.code_id().unwrap_or_else(|| "no build id".to_owned());
            self.line(Style::Faint, &format!(" <{id}>"))?;
            self.line(Style::Plain, &format!(" {}\n", image.path))?;
        }
        Ok(())
    }

    fn outcome(&mut self) -> fmt::Result {
        let report = self.report;
        if let Some(end) = &report.end {
            self.heading("How it was captured")?;
            let all = count(end.threads, "thread");
            let threads = format!("{} of {all}, {}", end.threads_captured, duration(end.total_ns));
            self.field("Captured", Style::Plain, &threads)?;
            let phases: Vec<String> = end
                .phases
                .iter()
                .map(|phase| format!("{} {}", phase.phase.to_string().replace('_', " "), duration(phase.ns)))
                .collect();
            self.field("Phases", Style::Faint, &phases.join(", "))?;
            if end.deadline {
                self.field("Note", Style::Warning, "the deadline cut the capture short")?;
            }
            for dropped in &end.dropped {
                let what = format!("{}: {} left out", dropped.section.to_string().replace('_', " "), dropped.count);
                self.field("Note", Style::Warning, &what)?;
            }
        }
        for fault in &report.faults {
            let name = fault.name.map_or_else(|| format!("signal {}", fault.signal), str::to_owned);
            let at = fault.address.map_or_else(String::new, |address: Address| format!(" at {address}"));
            let what = format!("{name}{at} while writing {}", fault.section.to_string().replace('_', " "));
            self.field("Fault", Style::Warning, &what)?;
        }
        if !report.problems.is_empty() {
            self.heading("Missing or damaged")?;
            for problem in &report.problems {
                self.line(Style::Warning, &format!("  {problem}\n"))?;
            }
        }
        if !report.unknown_sections.is_empty() {
            let sections = count(report.unknown_sections.len() as u64, "section");
            self.line(Style::Faint, &format!("\n{sections} from a newer format version not shown\n"))?;
        }
        Ok(())
    }
}

/// Returns a number with its noun: `1 frame`, `2 frames`.
pub(super) fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Joins the parts that are not empty with spaces.
fn joined(parts: &[String]) -> String {
    parts.iter().filter(|part| !part.is_empty()).map(String::as_str).collect::<Vec<_>>().join(" ")
}

/// Returns a system call's name and number, or only the number.
fn system_call(name: Option<&str>, number: i64) -> String {
    name.map_or_else(|| number.to_string(), |name| format!("{name} ({number})"))
}

/// Returns a thread's id, name and role.
fn thread_name(thread: &Thread) -> String {
    let name = thread.name.as_ref().map_or_else(String::new, |name| format!(" \"{name}\""));
    let main = if thread.main { " (main)" } else { "" };
    format!("{}{name}{main}", thread.tid)
}

/// Formats a duration in a readable unit.
fn duration(ns: u64) -> String {
    let duration = Duration::from_nanos(ns);
    if duration < Duration::from_secs(100) {
        return format!("{duration:.3?}");
    }
    let seconds = duration.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours} h {minutes} min") } else { format!("{minutes} min {seconds} s") }
}
