//! The crashed thread, the throws, and all other threads, grouped by equal stacks.

use std::collections::HashMap;

use coroner::Report;
use coroner_report::model::{Exception, Frame, InApp, Thread};
use coroner_report::text::short_function;
use coroner_report::wire::WalkEnd;
use maud::{Markup, html};

use super::frames::{View, stack};
use super::source_lines::SourceLines;

fn sources(report: &Report) -> SourceLines {
    SourceLines::new(report.crash.as_ref().map(|crash| crash.time).unwrap_or_default())
}

pub(super) fn exception(report: &Report, exception: &Exception, in_app: &InApp<'_>) -> Markup {
    let sources = sources(report);
    html! {
        section {
            h2 { "Thrown: " (exception.kind()) span.note { (exception.language) } }
            @if let Some(message) = &exception.message { p { (message) } }
            @if let Some(location) = &exception.location { p.source { (location) } }
            @if let Some(info) = &exception.user_info { pre tabindex="0" role="group" aria-label="User info" { (info) } }
            @if !exception.frames.is_empty() {
                (stack(&exception.frames, &exception.skipped, View { in_app, sources: Some(&sources) }))
            }
        }
    }
}

pub(super) fn crashed(report: &Report, in_app: &InApp<'_>) -> Markup {
    let Some(thread) = report.crashed_thread() else {
        return html! { section { h2 { "Crashed thread" } p.warning { "Unknown: the report is truncated." } } };
    };
    let sources = sources(report);
    let thrown = report.exceptions.first().filter(|exception| thread.has_frames_of(exception));
    html! {
        section {
            h2 { "Crashed thread: " (label(thread)) }
            @if thrown.is_some() {
                p.faint { "Same stack as the throw above." }
            } @else {
                (stack(&thread.frames, &thread.skipped, View { in_app, sources: Some(&sources) }))
            }
            (end(thread))
        }
    }
}

fn end(thread: &Thread) -> Markup {
    html! {
        @if let Some(reason) = thread.not_captured { p.warning { "not captured: " (reason.to_string().replace('_', " ")) } }
        @if let Some(end) = thread.walk_end.filter(|end| *end != WalkEnd::ROOT) {
            p.faint { "Stack walk ended: " (end.to_string().replace('_', " ")) }
        }
    }
}

fn label(thread: &Thread) -> String {
    let name = thread.name.as_ref().map_or_else(String::new, |name| format!(" “{name}”"));
    let main = if thread.main { " (main)" } else { "" };
    format!("{}{name}{main}", thread.tid)
}

/// The key by which stacks are equal: functions, or addresses if there are no names.
fn key(frames: &[Frame]) -> Vec<(u64, Option<&str>)> {
    frames.iter().map(|frame| (frame.address.0, frame.function.as_deref())).collect()
}

pub(super) fn others(report: &Report, in_app: &InApp<'_>) -> Markup {
    let crashed = report.crashed_thread().map(|thread| thread.tid);
    let others: Vec<&Thread> = report.threads.iter().filter(|thread| Some(thread.tid) != crashed).collect();
    if others.is_empty() {
        return html! {};
    }
    let mut places: HashMap<Vec<(u64, Option<&str>)>, usize> = HashMap::new();
    let mut groups: Vec<Vec<&Thread>> = Vec::new();
    for thread in &others {
        let place = *places.entry(key(&thread.frames)).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[place].push(thread);
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.len()));
    let view = View { in_app, sources: None };
    html! {
        section {
            h2 { "Other threads" span.note { (others.len()) " in " (groups.len()) " stacks" } }
            @for group in &groups { (one_group(group, view)) }
        }
    }
}

fn one_group(group: &[&Thread], view: View<'_>) -> Markup {
    let first = group[0];
    let doing = match (first.state, first.syscall_name) {
        (Some(state), Some(call)) => format!("{state} in {call}"),
        (Some(state), None) => state.to_string(),
        (None, _) => String::new(),
    };
    let mut own = first.frames.iter().flat_map(|frame| view.in_app.functions(frame)).filter(|function| function.in_app);
    let at = own.find_map(|function| function.name);
    let top = first.frames.iter().find_map(|frame| frame.function.as_deref().or(frame.raw_function.as_deref()));
    let place = at.or(top).map(|name| short_function(name, 80));
    html! {
        details.thread {
            summary {
                @if group.len() > 1 { b { (group.len()) " threads" } " with the same stack" } @else { b { "Thread " (label(first)) } }
                @if let Some(place) = &place { ": " code { (place) } }
                @if !doing.is_empty() { span.note { (doing) } }
            }
            @if group.len() > 1 {
                p.faint {
                    @for (number, thread) in group.iter().enumerate() { @if number > 0 { ", " } (label(thread)) }
                }
            }
            @if first.frames.is_empty() { p.faint { "no frames" } }
            @else { (stack(&first.frames, &first.skipped, view)) }
            (end(first))
        }
    }
}
