//! Facts about the app, the system, the crash and the report, as lists and tables.

use coroner::Report;
use coroner_explain::Explanation;
use coroner_report::model::CrashFlag;
use coroner_report::signature::Signature;
use maud::{Markup, html};

use super::collapsed;
use crate::explanation_text;
use crate::summary::Summary;

/// A list of names and values, without empty values.
fn list(rows: &[(&str, String)]) -> Markup {
    html! {
        dl { @for (label, value) in rows.iter().filter(|(_, value)| !value.is_empty()) { dt { (label) } dd { (value) } } }
    }
}

fn joined<'t>(parts: impl IntoIterator<Item = Option<&'t str>>) -> String {
    parts.into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

pub(super) fn identity(report: &Report, summary: &Summary) -> Markup {
    let header = &report.header;
    let run = report.run.as_ref();
    let os = run.map(|run| &run.os);
    let os_name = os.and_then(|os| os.name.clone()).unwrap_or_else(|| header.os.to_string());
    let system = joined([
        Some(os_name.as_str()),
        os.and_then(|os| os.version.as_deref()),
        os.and_then(|os| os.build.as_deref()),
        os.and_then(|os| os.distribution.as_deref()),
        os.and_then(|os| os.distribution_version.as_deref()),
        header.arch.map(|arch| arch.name()),
        run.and_then(|run| run.device.model.as_deref()),
    ]);
    let main = report.images.iter().find(|image| image.is_main);
    let signature = Signature::from_report(report);
    list(&[
        ("Time", summary.time.known_text()),
        (
            "Process",
            if header.pid == 0 {
                header.process_name.clone()
            } else {
                format!("{} [{}]", header.process_name, header.pid)
            },
        ),
        ("Program", main.map(|main| main.path.clone()).unwrap_or_default()),
        ("Release", summary.release.clone().unwrap_or_default()),
        (
            "Environment",
            run.and_then(|run| run.environment.clone().or_else(|| run.app.environment.clone())).unwrap_or_default(),
        ),
        ("System", system),
        ("Event", summary.event_id.clone()),
        ("Signature", format!("{} – {signature}", signature.id())),
    ])
}

pub(super) fn why(explanation: &Explanation) -> Markup {
    let fields = explanation_text::fields(explanation);
    html! {
        @if !fields.is_empty() {
            section { h2 { "Why" } (list(&fields)) }
        }
    }
}

pub(super) fn what_happened(report: &Report) -> Markup {
    let Some(crash) = &report.crash else { return html! {} };
    let signal = crash.signal.as_ref().map(|signal| {
        let name = signal.name.map_or_else(|| signal.number.to_string(), ToOwned::to_owned);
        let code = signal.code_text().map_or_else(String::new, |code| format!(", {code}"));
        let sender = signal.sender_pid.map_or_else(String::new, |pid| format!(", sent by process {pid}"));
        format!("{name}{code}{sender}")
    });
    let mach = crash.mach.as_ref().map(|mach| {
        let name = mach.name.map_or_else(|| mach.exception.to_string(), ToOwned::to_owned);
        mach.code_text().map_or_else(|| name.clone(), |code| format!("{name}, {code}"))
    });
    let address = crash.address.map(|address| {
        let access = crash.access.map_or_else(String::new, |access| format!(" ({access})"));
        let place = report.image_at(address).map_or_else(String::new, |image| format!(", in {}", image.name()));
        format!("{address}{access}{place}")
    });
    let notes = [
        (CrashFlag::StackOverflow, "the stack overflowed"),
        (CrashFlag::Recrash, "the crash handler itself crashed while writing this report"),
        (CrashFlag::BadStackPointer, "the stack pointer was not in readable memory"),
        (CrashFlag::ForkChild, "the process was a forked child"),
        (CrashFlag::NotFatal, "the process continued"),
    ];
    let notes: Vec<&str> = notes.iter().filter(|(flag, _)| crash.has(*flag)).map(|(_, note)| *note).collect();
    html! {
        section {
            h2 { "What happened" }
            (list(&[
                ("Exception", mach.unwrap_or_default()),
                ("Signal", signal.unwrap_or_default()),
                ("Address", address.unwrap_or_default()),
                ("Message", crash.message.clone().unwrap_or_default()),
                ("Location", crash.location.clone().unwrap_or_default()),
                ("Note", notes.join("; ")),
            ]))
            @for annotation in &report.annotations {
                p { (annotation.text) " " span.note { (annotation.source) } }
            }
            @for concurrent in &crash.concurrent_crashes {
                p.warning { "Thread " (concurrent.tid) " also crashed: " (concurrent.name.unwrap_or("a signal")) }
            }
        }
    }
}

pub(super) fn scope(report: &Report) -> Markup {
    let Some(run) = &report.run else { return html! {} };
    let user = run.user.iter().map(|user| ("user", user));
    let values: Vec<_> =
        user.chain(run.contexts.iter().chain(&run.extra).map(|(key, value)| (key.as_str(), value))).collect();
    html! {
        @if !run.tags.is_empty() {
            section {
                h2 { "Tags" }
                dl { @for (key, value) in &run.tags { dt { (key) } dd { (value) } } }
            }
        }
        @if !values.is_empty() {
            section {
                h2 { "Contexts" }
                @for (key, value) in values {
                    @let label = format!("Context {key}");
                    h3 { (key) }
                    pre tabindex="0" role="group" aria-label=(label) { (serde_json::to_string_pretty(value).unwrap_or_default()) }
                }
            }
        }
    }
}

pub(super) fn images(report: &Report) -> Markup {
    if report.images.is_empty() {
        return html! {};
    }
    let mut images: Vec<_> = report.images.iter().collect();
    images.sort_by_key(|image| image.load_address);
    let content = html! {
        div.scroll tabindex="0" role="group" aria-label="Loaded images" {
            table {
                thead { tr { th scope="col" { "From" } th scope="col" { "To" } th scope="col" { "Image" } th scope="col" { "Build id" } } }
                tbody {
                    @for image in images {
                        tr {
                            td.mono { (image.load_address) }
                            td.mono { (format!("{:#x}", image.load_address.0.wrapping_add(image.size))) }
                            td { b { (image.name()) } br; span.faint { (image.path) } @if image.replaced { " " span.warning { "replaced while the process ran" } } }
                            td.mono { (image.code_id().unwrap_or_default()) }
                        }
                    }
                }
            }
        }
    };
    collapsed("Loaded images", &report.images.len().to_string(), &content)
}

pub(super) fn capture(report: &Report) -> Markup {
    let end = report.end.as_ref();
    if end.is_none() && report.problems.is_empty() && report.faults.is_empty() {
        return html! {};
    }
    let content = html! {
        @if let Some(end) = end {
            (list(&[
                ("Threads", format!("{} of {}", end.threads_captured, end.threads)),
                ("Duration", format!("{:.3?}", end.total())),
                ("Coroner", report.header.sdk_version.clone()),
            ]))
            @if end.deadline { p.warning { "The deadline cut the capture short." } }
            @for dropped in &end.dropped {
                p.warning { (dropped.section.to_string().replace('_', " ")) ": " (dropped.count) " left out" }
            }
        }
        @for fault in &report.faults {
            p.warning { (fault.name.unwrap_or("a signal")) " while writing " (fault.section.to_string().replace('_', " ")) }
        }
        @for problem in &report.problems { p.warning { (problem) } }
    };
    collapsed("How it was captured", if report.complete { "complete" } else { "incomplete" }, &content)
}
