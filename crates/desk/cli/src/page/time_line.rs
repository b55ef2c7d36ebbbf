//! A time line of the run: its start, the app's breadcrumbs, and the crash.

use coroner::Report;
use coroner_report::model::Breadcrumb;
use coroner_report::run_state::Level;
use maud::{Markup, html};

/// The picture's width in its own units.
const WIDTH: f64 = 1000.0;
/// Maximum number of marks in the picture.
const MAX_MARKS: usize = 400;

/// An event on the time line.
struct Event<'r> {
    /// Nanoseconds since the Unix epoch.
    time: u64,
    what: &'r str,
    detail: String,
    is_bad: bool,
}

pub(super) fn section(report: &Report) -> Markup {
    let Some(crash) = &report.crash else { return html! {} };
    let end = crash.time.0;
    let mut events: Vec<Event<'_>> = Vec::new();
    let mut add = |time: u64, what, detail: String, is_bad| {
        if time > 0 {
            events.push(Event { time, what, detail, is_bad });
        }
    };
    add(report.header.process_start.0, "process", "The process started.".to_owned(), false);
    let run = report.run.as_ref();
    if let Some(run) = run {
        add(run.app.installed.unwrap_or_default().0, "coroner", "Coroner was installed.".to_owned(), false);
        let foreground = run.lifecycle.foreground_changed.unwrap_or_default().0;
        add(foreground, "app", format!("The app was {} from then on.", run.lifecycle.foreground), false);
        if let Some(hang) = run.lifecycle.hang_since {
            add(hang.0, "hang", "A thread stopped responding.".to_owned(), true);
        }
        for breadcrumb in &run.breadcrumbs {
            let is_bad = breadcrumb.level.0 >= Level::WARNING.0;
            add(breadcrumb.time.0, category(breadcrumb), message(breadcrumb), is_bad);
        }
    }
    events.sort_by_key(|event| event.time);
    let errors = run.and_then(|run| run.session.as_ref()).map_or(0, |session| session.errors);
    html! {
        section {
            h2 { "Before the crash" @if errors > 0 { span.note { (errors) " handled errors in this session" } } }
            (picture(&events, end))
            ol.life {
                @for event in &events {
                    li {
                        time { (before(event.time, end)) }
                        span class=(if event.is_bad { "warning" } else { "" }) { b { (event.what) } " " (event.detail) }
                    }
                }
                li.end { time { (crash.time) } span { (report.cause().unwrap_or_else(|| crash.kind())) } }
            }
        }
    }
}

fn category(breadcrumb: &Breadcrumb) -> &str {
    breadcrumb.category.as_deref().or(breadcrumb.kind.as_deref()).unwrap_or("breadcrumb")
}

fn message(breadcrumb: &Breadcrumb) -> String {
    let message = breadcrumb.message.clone().unwrap_or_default();
    let data = breadcrumb.data.as_ref().map_or_else(String::new, |data| format!(" {}", data.to_json()));
    let times = breadcrumb.repetitions + 1;
    if times > 1 { format!("{message}{data} ({times} times)") } else { format!("{message}{data}") }
}

/// Formats the time before the crash in a readable unit.
fn before(time: u64, end: u64) -> String {
    if time > end {
        return "after the crash".to_owned();
    }
    let seconds = (end - time) as f64 / 1e9;
    match seconds {
        ..0.001 => format!("−{:.0} µs", seconds * 1e6),
        ..1.0 => format!("−{:.0} ms", seconds * 1e3),
        ..120.0 => format!("−{seconds:.1} s"),
        ..7200.0 => format!("−{:.0} min", seconds / 60.0),
        _ => format!("−{:.1} h", seconds / 3600.0),
    }
}

/// Draws events on a line that ends at the crash, on a logarithmic scale of the time before it.
fn picture(events: &[Event<'_>], end: u64) -> Markup {
    let within: Vec<&Event<'_>> = events.iter().filter(|event| event.time <= end).collect();
    let Some(first) = within.first() else { return html! {} };
    let scale = |time: u64| ((end.saturating_sub(time)) as f64 / 1e6).ln_1p();
    let whole = scale(first.time).max(f64::MIN_POSITIVE);
    let place = |time: u64| format!("{:.1}", 20.0 + (WIDTH - 60.0) * (1.0 - scale(time) / whole));
    let from = within.len().saturating_sub(MAX_MARKS);
    let label = format!("{} events before the crash, the first at {}", within.len(), before(first.time, end));
    html! {
        svg viewBox="0 0 1000 50" preserveAspectRatio="none" role="img" aria-label=(label) {
            line.axis x1="10" y1="25" x2="970" y2="25" {}
            @for event in &within[from..] {
                circle class=(if event.is_bad { "bad" } else { "crumb" }) cx=(place(event.time)) cy="25" r="5" {
                    title { (before(event.time, end)) " " (event.what) }
                }
            }
            path.crash d="M962 15 L982 35 M982 15 L962 35" {}
            rect.crash x="962" y="15" width="20" height="20" {}
        }
    }
}
