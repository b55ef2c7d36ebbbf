//! A report as Markdown, for an issue or a program.
//!
//! It is compact, and contains neither the home directory's name nor memory and registers.

use std::fmt::Write;

use coroner::Report;
use coroner_explain::{CodeSource, Explanation};
use coroner_report::model::{InApp, InAppRules, Thread, hide_home};
use coroner_report::signature::Signature;
use coroner_report::text::{Step, short_function, short_path, steps};

use crate::summary::{State, Summary};
use crate::terminal::{is_control, sanitize};

/// Maximum lines of a stack.
const MAX_FRAMES: usize = 40;
/// Maximum number of breadcrumbs; the last ones are kept.
const MAX_BREADCRUMBS: usize = 15;
/// Maximum number of waits.
const MAX_WAITS: usize = 20;
/// Maximum characters of a function's name.
const MAX_NAME: usize = 100;

/// Returns the report as Markdown.
pub(crate) fn render(report: &Report, code: &dyn CodeSource) -> String {
    let mut report = report.clone();
    report.scrub(&coroner::hide_secrets);
    let summary = Summary::new(&report, std::path::Path::new(""), State::Stored);
    let mut text = String::new();
    // Writing to a string can't fail.
    let _ = write(&report, &summary, &coroner_explain::explain(&report, code), &mut text);
    text
}

fn write(report: &Report, summary: &Summary, explanation: &Explanation, out: &mut String) -> std::fmt::Result {
    writeln!(out, "## {}\n", escaped(&summary.title()))?;
    writeln!(out, "{}\n", escaped(&explanation.headline))?;
    let signature = Signature::from_report(report);
    let system = report.run.as_ref().map(|run| {
        let parts =
            [&run.os.name, &run.os.version, &run.os.distribution, &run.os.distribution_version, &run.device.model];
        parts.into_iter().flatten().map(String::as_str).collect::<Vec<_>>().join(" ")
    });
    let arch = report.header.arch.map_or("", |arch| arch.name());
    let rows = [
        ("App", [summary.app.as_str(), &summary.version].join(" ").trim().to_owned()),
        ("Release", summary.release.clone().unwrap_or_default()),
        ("System", format!("{} {arch}", system.unwrap_or_else(|| report.header.os.to_string())).trim().to_owned()),
        ("Time", summary.time.known_text()),
        ("Event", summary.event_id.clone()),
        ("Signature", format!("`{}`", signature.id())),
    ];
    for (label, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
        writeln!(out, "- **{label}:** {}", if *label == "Signature" { value.clone() } else { escaped(value) })?;
    }
    if let Some(cause) = report.cause() {
        writeln!(out, "- **Cause:** {}", escaped(&cause))?;
    }
    for wait in explanation.waits.iter().filter(|wait| wait.owner.is_some()).take(MAX_WAITS) {
        writeln!(out, "- **Waits:** {}", escaped(&wait.to_string()))?;
    }
    for exception in &report.exceptions {
        let message = report.message_of(exception).unwrap_or_default();
        writeln!(out, "\n### Thrown: {}\n\n{}\n", escaped(&exception.kind()), escaped(message))?;
        stack(report, &exception.frames, out)?;
    }
    if let Some(thread) = report.crashed_thread() {
        let shown = report.exceptions.first().is_some_and(|exception| thread.has_frames_of(exception));
        if !shown {
            writeln!(out, "\n### {}\n", escaped(&heading(thread)))?;
            stack(report, &thread.frames, out)?;
        }
    }
    let others = report.threads.len().saturating_sub(1);
    if others > 0 {
        writeln!(out, "\n{others} other {} not shown.", if others == 1 { "thread is" } else { "threads are" })?;
    }
    let Some(run) = &report.run else { return Ok(()) };
    if !run.tags.is_empty() {
        let tags: Vec<String> =
            run.tags.iter().map(|(key, value)| format!("{}={}", escaped(key), escaped(value))).collect();
        writeln!(out, "\n**Tags:** {}", tags.join(", "))?;
    }
    let from = run.breadcrumbs.len().saturating_sub(MAX_BREADCRUMBS);
    if let [_, ..] = &run.breadcrumbs[from..] {
        writeln!(out, "\n### Breadcrumbs (most recent last)\n")?;
        for breadcrumb in &run.breadcrumbs[from..] {
            let category = breadcrumb.category.as_deref().or(breadcrumb.kind.as_deref()).unwrap_or_default();
            let message = breadcrumb.message.as_deref().unwrap_or_default();
            let category = if category.is_empty() { String::new() } else { format!("**{}** ", escaped(category)) };
            let times = match breadcrumb.repetitions {
                0 => String::new(),
                repetitions => format!(" ({} times)", repetitions + 1),
            };
            writeln!(out, "- {} {category}{}{times}", breadcrumb.time, escaped(message))?;
        }
    }
    Ok(())
}

fn heading(thread: &Thread) -> String {
    let name = thread.name.as_ref().map_or_else(String::new, |name| format!(" \"{name}\""));
    format!("Thread {}{name}", thread.tid)
}

/// Writes frames as a code block, with the app's own marked.
///
/// A runtime's consecutive frames take one line.
fn stack(report: &Report, frames: &[coroner_report::model::Frame], out: &mut String) -> std::fmt::Result {
    let rules = InAppRules::default();
    let in_app = InApp::new(&rules, report);
    writeln!(out, "```text")?;
    let mut lines = 0;
    let mut folded = 0;
    let unfold = |folded: &mut usize, out: &mut String| match std::mem::take(folded) {
        0 => Ok(()),
        number => writeln!(out, "     … {number} runtime functions"),
    };
    for step in steps(frames) {
        let (number, frame) = match step {
            Step::Frame(number) => (number, &frames[number]),
            Step::Repeated { round, times } => {
                unfold(&mut folded, out)?;
                let what = if round == 1 { "this frame".to_owned() } else { format!("these {round} frames") };
                writeln!(out, "     … {what} {times} more times")?;
                continue;
            }
        };
        for function in in_app.functions(frame) {
            if lines == MAX_FRAMES {
                writeln!(out, "     … {} more frames", frames.len() - number)?;
                return writeln!(out, "```");
            }
            if number > 0 && function.name.is_some() && in_app.is_runtime(function.name, function.file) {
                folded += 1;
                continue;
            }
            unfold(&mut folded, out)?;
            let module = frame.module.as_deref().map_or("?", |path| path.rsplit('/').next().unwrap_or(path));
            let offset = frame.module_offset.map_or_else(String::new, |offset| format!("+ {offset}"));
            let name = function.name.map_or_else(|| offset.into(), |name| short_function(name, MAX_NAME));
            let source = function.file.map_or_else(String::new, |file| {
                let mut file = file.to_owned();
                hide_home(&mut file);
                let line = function.line.map_or_else(String::new, |line| format!(":{line}"));
                format!(" ({}{line})", short_path(&file))
            });
            let mark = if function.in_app { '*' } else { ' ' };
            // Replace what would end the code block.
            let line =
                format!("{mark}{number:3} {module} {name}{source}").replace("```", "'''").replace(['\n', '\r'], " ");
            writeln!(out, "{}", sanitize(&line))?;
            lines += 1;
        }
    }
    unfold(&mut folded, out)?;
    writeln!(out, "```")
}

/// Escapes text so that it contains neither Markdown nor HTML.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.trim().chars() {
        match character {
            '\n' | '\r' => escaped.push(' '),
            _ if is_control(character) => escaped.push('\u{fffd}'),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            // `@` and `#` would notify people and link issues.
            '@' => escaped.push_str("&#64;"),
            '#' => escaped.push_str("&#35;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '~' | '!' => {
                escaped.push('\\');
                escaped.push(character);
            }
            _ => escaped.push(character),
        }
    }
    escaped
}
