//! A flame graph of a hang's profile.
//!
//! A function's width is the time spent in it and its callees, which are drawn above it.

use std::time::Duration;

use coroner::Report;
use coroner_explain::ProfileTree;
use maud::{Markup, html};

/// The picture's width and a function's height, in its own units.
const WIDTH: f64 = 1200.0;
const ROW_HEIGHT: usize = 18;
/// Minimum width of a function, maximum depth, and maximum number of functions.
const MIN_WIDTH: f64 = 1.5;
const MAX_DEPTH: usize = 100;
const MAX_FUNCTIONS: usize = 2000;
/// The width of a letter.
const LETTER_WIDTH: f64 = 6.5;

struct Bar {
    left: f64,
    width: f64,
    depth: usize,
    node: usize,
}

pub(super) fn section(report: &Report) -> Markup {
    let Some((profile, tree)) = report.profile.as_ref().zip(ProfileTree::from_report(report)) else { return html! {} };
    let bars = bars(&tree);
    let rows = bars.iter().map(|bar| bar.depth + 1).max().unwrap_or(1);
    let time = format!("{} samples, {:.1?}", profile.samples, Duration::from_nanos(tree.weight_ns));
    html! {
        section {
            h2 { "Profile of the hang" span.note { (time) } }
            svg.flames viewBox=(format!("0 0 {WIDTH} {}", rows * ROW_HEIGHT)) role="img" aria-label="Functions by the time spent in them" {
                @for bar in &bars {
                    @let node = &tree.nodes[bar.node];
                    @let y = (rows - 1 - bar.depth) * ROW_HEIGHT;
                    g class=(if node.in_app { "own" } else { "other" }) {
                        title {
                            (node.name) ": " (format!("{:.1} %", tree.percent(node.weight_ns)))
                            @if let Some((what, weight)) = &node.doing { (format!(", {:.1} % {what}", tree.percent(*weight))) }
                        }
                        rect x=(format!("{:.1}", bar.left)) y=(y) width=(format!("{:.1}", bar.width)) height=(ROW_HEIGHT - 1) {}
                        @if let Some(label) = label(&node.name, bar.width) {
                            text x=(format!("{:.1}", bar.left + 3.0)) y=(y + 13) { (label) }
                        }
                    }
                }
            }
        }
    }
}

/// Returns the functions that are wide enough, callers first.
///
/// Each starts where its caller starts or where its left neighbor ends.
fn bars(tree: &ProfileTree) -> Vec<Bar> {
    let called = tree.called_by();
    let mut bars: Vec<Bar> = Vec::new();
    let mut waiting: Vec<(Option<usize>, f64, usize)> = vec![(None, 0.0, 0)];
    while let Some((caller, mut left, depth)) = waiting.pop() {
        for &node in called.get(&caller).into_iter().flatten() {
            let width = tree.percent(tree.nodes[node].weight_ns) / 100.0 * WIDTH;
            if width < MIN_WIDTH || depth >= MAX_DEPTH || bars.len() >= MAX_FUNCTIONS {
                break;
            }
            bars.push(Bar { left, width, depth, node });
            waiting.push((Some(node), left, depth + 1));
            left += width;
        }
    }
    bars
}

/// Returns as much of a name as fits in a bar.
fn label(name: &str, width: f64) -> Option<String> {
    let letters = ((width - 6.0) / LETTER_WIDTH) as usize;
    match name.chars().count() {
        _ if letters < 3 => None,
        all if all <= letters => Some(name.to_owned()),
        _ => Some(name.chars().take(letters - 1).chain(['…']).collect()),
    }
}
