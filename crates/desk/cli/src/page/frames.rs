//! A stack as a list with an item for each function; a runtime's functions are folded.

use coroner_report::model::{Frame, Function, InApp, Skipped};
use coroner_report::text::{Step, short_function, short_path, steps};
use coroner_report::wire::FoundBy;
use maud::{Markup, html};

use super::source_lines::SourceLines;

/// Maximum characters of a function's name; the title has the full name.
const MAX_NAME: usize = 160;
/// Maximum number of frames shown, not counting repeated recursion.
const MAX_FRAMES: usize = 512;

/// The options for showing a stack.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) in_app: &'a InApp<'a>,
    /// The source lines to show; `None` shows none.
    pub(super) sources: Option<&'a SourceLines>,
}

/// A function of a frame, with the frame's index in the stack.
struct Item<'f> {
    number: u64,
    frame: &'f Frame,
    function: Function<'f>,
}

impl Item<'_> {
    fn is_runtime(&self, in_app: &InApp<'_>) -> bool {
        self.number > 0
            && self.function.name.is_some()
            && !self.function.in_app
            && in_app.is_runtime(self.function.name, self.function.file)
    }
}

/// Renders the stack as a list.
pub(super) fn stack(frames: &[Frame], skipped: &[Skipped], view: View<'_>) -> Markup {
    let mut parts: Vec<Markup> = Vec::new();
    let (mut number, mut begin, mut shown) = (0_u64, 0, 0);
    let gaps = skipped.iter().map(|gap| (gap.after.min(frames.len()), gap.count));
    for (end, left_out) in gaps.chain([(frames.len(), 0)]) {
        let end = end.max(begin);
        let run = &frames[begin..end];
        let mut items: Vec<Item<'_>> = Vec::new();
        for step in steps(run) {
            match step {
                Step::Frame(_) if shown >= MAX_FRAMES => shown += 1,
                Step::Frame(place) => {
                    shown += 1;
                    let (number, frame) = (number + place as u64, &run[place]);
                    items.extend(view.in_app.functions(frame).map(|function| Item { number, frame, function }));
                }
                Step::Repeated { round, times } => {
                    parts.push(list_items(&std::mem::take(&mut items), view));
                    let what = if round == 1 { "this frame".to_owned() } else { format!("these {round} frames") };
                    parts.push(html! { li.fold { span.faint { (what) " " (times) " more times" } } });
                }
            }
        }
        parts.push(list_items(&items, view));
        if left_out > 0 {
            parts.push(html! { li.fold { span.faint { (left_out) " frames left out" } } });
        }
        number += (end - begin) as u64 + left_out;
        begin = end;
    }
    if shown > MAX_FRAMES {
        parts.push(html! { li.fold { span.faint { (shown - MAX_FRAMES) " more frames are not on this page" } } });
    }
    html! { ol.stack { @for part in &parts { (part) } } }
}

fn list_items(mut items: &[Item<'_>], view: View<'_>) -> Markup {
    let mut parts: Vec<Markup> = Vec::new();
    while let Some(first) = items.first() {
        let folded = items.iter().take_while(|item| item.is_runtime(view.in_app)).count();
        if folded >= 2 {
            let names = (name(&items[0], 48), name(&items[folded - 1], 48));
            parts.push(html! {
                li.fold {
                    details {
                        summary { (folded) " runtime functions" span.note { (names.0) " … " (names.1) } }
                        ol.stack { @for item in &items[..folded] { (list_item(item, view)) } }
                    }
                }
            });
        } else {
            parts.push(list_item(first, view));
        }
        items = &items[folded.max(1)..];
    }
    html! { @for part in &parts { (part) } }
}

fn name(item: &Item<'_>, width: usize) -> String {
    match (item.function.name, item.frame.module_offset) {
        (Some(name), _) => short_function(name, width).into_owned(),
        (None, Some(offset)) => format!("+ {offset}"),
        (None, None) => format!("{}", item.frame.address),
    }
}

fn list_item(item: &Item<'_>, view: View<'_>) -> Markup {
    let Item { number, frame, function } = item;
    let module = frame.module.as_deref().map_or("", |path| path.rsplit('/').next().unwrap_or(path));
    let is_inlined = function.is_inlined;
    let guessed = matches!(frame.found_by, FoundBy::SCAN | FoundBy::STACK_TOP | FoundBy::LINK_REGISTER);
    let lines = view.sources.filter(|_| function.in_app).and_then(|sources| sources.render(function));
    html! {
        li class=(if function.in_app { "own" } else { "" }) {
            span.number { (number) }
            span.module { @if is_inlined { "inlined" } @else { (module) } }
            span.body {
                span.function title=(function.name.unwrap_or_default()) { (name(item, MAX_NAME)) }
                @if !is_inlined {
                    " " span.place { (frame.address) }
                }
                @if guessed && !is_inlined {
                    " " span.warning { "uncertain, found by " (frame.found_by.to_string().replace('_', " ")) }
                }
                @if let Some(file) = function.file {
                    span.source title=(file) {
                        (short_path(file)) @if let Some(line) = function.line { ":" (line) }
                    }
                }
            }
            @if let Some(lines) = lines { (lines) }
        }
    }
}
