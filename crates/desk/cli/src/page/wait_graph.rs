//! A picture of which thread waits for which.
//!
//! Threads are drawn below each other, with an arrow from each waiting thread to the one it waits
//! for.

use std::collections::HashSet;

use coroner::Report;
use coroner_explain::Explanation;
use maud::{Markup, html};

/// Maximum number of threads in the picture.
const MAX_THREADS: usize = 40;
/// The picture's width, a thread's height, and the arrows' start, in its own units.
const WIDTH: usize = 1000;
const ROW_HEIGHT: usize = 30;
const ARROWS: usize = 560;

pub(super) fn section(report: &Report, explanation: &Explanation) -> Markup {
    let lines: Vec<String> = explanation.waits.iter().take(4 * MAX_THREADS).map(ToString::to_string).collect();
    if lines.is_empty() {
        return html! {};
    }
    let locked: HashSet<u64> = explanation.deadlocks.iter().flatten().copied().collect();
    let edges = explanation.waits.iter().filter_map(|wait| Some((wait.tid, wait.owner?)));
    let edges: Vec<(u64, u64)> = edges.take(4 * MAX_THREADS).collect();
    // A deadlock's threads come first, side by side, then the others in the report's order.
    let mut tids: Vec<u64> = Vec::new();
    let all = edges.iter().flat_map(|(waits, has)| [*waits, *has]);
    for tid in explanation.deadlocks.iter().flatten().copied().chain(all) {
        if !tids.contains(&tid) && tids.len() < MAX_THREADS {
            tids.push(tid);
        }
    }
    let place = |tid: u64| tids.iter().position(|other| *other == tid);
    let arrows: Vec<(usize, usize, bool)> = edges
        .iter()
        .filter_map(|(waits, has)| Some((place(*waits)?, place(*has)?, locked.contains(waits) && locked.contains(has))))
        .collect();
    let name = |tid: u64| {
        let thread = report.threads.iter().find(|thread| thread.tid == tid);
        let name = thread.and_then(|thread| thread.name.as_deref()).unwrap_or_default();
        let gone = if thread.is_none() { ", not in the report" } else { "" };
        format!("{tid} {}{gone}", name.chars().take(40).collect::<String>())
    };
    let height = ROW_HEIGHT * tids.len();
    html! {
        section {
            h2 { "Waiting threads" @if !explanation.deadlocks.is_empty() { span.warning { " deadlock" } } }
            @if !arrows.is_empty() {
                svg.graph viewBox=(format!("0 0 {WIDTH} {height}")) role="img" aria-label="Threads waiting for each other, also listed below" {
                    @for (row, tid) in tids.iter().enumerate() {
                        text x="10" y=(row * ROW_HEIGHT + 20) { (name(*tid)) }
                    }
                    @for (number, (from, to, is_locked)) in arrows.iter().enumerate() {
                        (arrow(number, *from, *to, *is_locked))
                    }
                }
            }
            ul.waits { @for line in &lines { li { (line) } } }
        }
    }
}

/// Draws an arrow from one row to another, to the right of earlier arrows.
fn arrow(number: usize, from: usize, to: usize, is_locked: bool) -> Markup {
    let (start, end) = (from * ROW_HEIGHT + 10, to * ROW_HEIGHT + 20);
    let right = ARROWS + 30 + 25 * (number % 15);
    let path = format!("M{ARROWS} {start} H{right} V{end} H{ARROWS}");
    let head = format!("M{ARROWS} {end} l9 -5 v10 z");
    let class = if is_locked { "locked" } else { "waits" };
    html! { g class=(class) { path.line d=(path) {} path.head d=(head) {} } }
}
