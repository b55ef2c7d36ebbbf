//! Stacks as text: a line for each frame and for each function that is inlined into it.

use super::report::{Writer, count};
use super::source_path::{short_function, short_path};
use super::{Folding, Style};
use crate::model::{Frame, Skipped, is_runtime_code};
use crate::wire::FoundBy;
use std::borrow::Cow;
use std::fmt::{self, Write as _};

/// What the names of the libraries begin with that throw and unwind.
const CPP_RUNTIME: [&str; 4] = ["libstdc++", "libc++", "libgcc_s", "libunwind"];

/// From so many lines of a runtime on, one after the other, one line stands for them.
const WORTH_FOLDING: usize = 2;

/// Most characters of the names that stand for folded lines.
const SHORT_NAME: usize = 36;

/// A line of a stack.
#[derive(Clone, Copy)]
struct Line<'f> {
    number: u64,
    frame: &'f Frame,
    /// Which function of [`Frame::inlined`] it is of; `None`: of the frame's own.
    inlined: Option<usize>,
}

impl<'f> Line<'f> {
    /// The lines of a frame, the innermost first.
    fn of(number: u64, frame: &'f Frame) -> impl Iterator<Item = Line<'f>> {
        let inlined = (0..frame.inlined.len()).map(Some).chain([None]);
        inlined.map(move |inlined| Line { number, frame, inlined })
    }

    fn function(&self) -> Option<&'f str> {
        let (named, raw) = match self.inlined.and_then(|index| self.frame.inlined.get(index)) {
            Some(inlined) => (&inlined.function, &inlined.raw_function),
            None => (&self.frame.function, &self.frame.raw_function),
        };
        named.as_deref().or(raw.as_deref())
    }

    fn source(&self) -> (Option<&'f str>, Option<u32>, Option<u32>) {
        match self.inlined.and_then(|index| self.frame.inlined.get(index)) {
            Some(inlined) => (inlined.file.as_deref(), inlined.line, inlined.column),
            None => (self.frame.file.as_deref(), self.frame.line, self.frame.column),
        }
    }

    fn is_runtime(&self) -> bool {
        self.function().is_some_and(|function| is_runtime_code(Some(function), self.source().0))
    }
}

impl Writer<'_> {
    /// Frames from the call of the app on, if it is known.
    pub(super) fn frames_of_exception(&mut self, frames: &[Frame], skipped: &[Skipped]) -> fmt::Result {
        let is_of_app = |frame: &Frame| {
            let inlined = frame.inlined.iter().map(|inlined| (inlined.function.as_deref(), inlined.file.as_deref()));
            let all = inlined.chain([(frame.function.as_deref(), frame.file.as_deref())]);
            let mut functions = all.filter(|(function, _)| function.is_some()).peekable();
            if functions.peek().is_none() {
                // The runtime's own functions have no names where it is stripped.
                return !CPP_RUNTIME.iter().any(|name| module_name(frame).starts_with(name));
            }
            functions.any(|(function, file)| !is_runtime_code(function, file))
        };
        let first = match self.options.folding {
            Folding::None => 0,
            _ => frames.iter().position(is_of_app).unwrap_or(0),
        };
        let first = if skipped.iter().any(|skipped| skipped.after < first) { 0 } else { first };
        if first > 0 {
            self.line(Style::Faint, &format!("     … {} of the runtime …\n", count(first as u64, "frame")))?;
        }
        self.frames_from(first, frames, skipped)
    }

    pub(super) fn frames(&mut self, frames: &[Frame], skipped: &[Skipped]) -> fmt::Result {
        self.frames_from(0, frames, skipped)
    }

    /// The frames from the one with the number `begin`, before which none is left out.
    fn frames_from(&mut self, mut begin: usize, frames: &[Frame], skipped: &[Skipped]) -> fmt::Result {
        let width = frames.iter().map(|frame| module_name(frame).chars().count()).max().unwrap_or(0);
        let width = width.clamp(6, if self.options.width.is_some_and(|width| width < 100) { 16 } else { 32 });
        // Frames keep the number that they have in the whole stack.
        let mut number = begin as u64;
        for skipped in skipped {
            let end = skipped.after.clamp(begin, frames.len());
            self.run_of_frames(number, &frames[begin..end], width)?;
            self.line(Style::Faint, &format!("     … {} left out …\n", count(skipped.count, "frame")))?;
            number += (end - begin) as u64 + skipped.count;
            begin = end;
        }
        self.run_of_frames(number, &frames[begin..], width)
    }

    /// Frames without a gap between them. Of a recursion the first two rounds are shown, unless all are asked for.
    fn run_of_frames(&mut self, number: u64, frames: &[Frame], width: usize) -> fmt::Result {
        let mut lines: Vec<Line<'_>> = Vec::new();
        if self.options.folding == Folding::None {
            lines.extend((number..).zip(frames).flat_map(|(number, frame)| Line::of(number, frame)));
            return self.lines(&lines, width);
        }
        for step in steps(frames) {
            match step {
                Step::Frame(place) => lines.extend(Line::of(number + place as u64, &frames[place])),
                Step::Repeated { round, times } => {
                    self.lines(&std::mem::take(&mut lines), width)?;
                    let what = if round == 1 { "this frame".to_owned() } else { format!("these {round} frames") };
                    self.line(Style::Faint, &format!("     … {what} {times} times more …\n"))?;
                }
            }
        }
        self.lines(&lines, width)
    }

    /// Lines one after the other; those of a runtime as one, unless all are asked for. Where it happened is always shown.
    fn lines(&mut self, mut lines: &[Line<'_>], width: usize) -> fmt::Result {
        while let Some(first) = lines.first() {
            let is_innermost = first.number == 0 && first.inlined.is_none_or(|index| index == 0);
            let folded = match self.options.folding < Folding::Runtime || is_innermost {
                true => 0,
                false => lines.iter().take_while(|line| line.is_runtime()).count(),
            };
            if folded >= WORTH_FOLDING {
                let (from, to) = (first.function().unwrap_or("?"), lines[folded - 1].function().unwrap_or("?"));
                let (from, to) = (short_function(from, SHORT_NAME), short_function(to, SHORT_NAME));
                self.line(Style::Faint, &format!("     … {folded} functions of the runtime: {from} … {to}\n"))?;
            } else {
                self.stack_line(first, width)?;
            }
            lines = &lines[folded.max(1)..];
        }
        Ok(())
    }

    fn stack_line(&mut self, line: &Line<'_>, width: usize) -> fmt::Result {
        let Line { number, frame, inlined } = *line;
        let function = line.function();
        let before = 4 + 1 + width + 1 + 18 + 1;
        let source = self.source(line);
        let offset = frame.symbol_address.filter(|start| inlined.is_none() && *start <= frame.address);
        let offset = offset.map_or_else(String::new, |start| format!(" + {}", frame.address.0 - start.0));
        let note = self.note(line);
        // What is too long for a terminal loses its arguments first; the source then has a line of its own.
        let room = self.options.width.map(|width| width.saturating_sub(before).max(24));
        let beside = offset.chars().count() + note.chars().count() + source.chars().count();
        let name_of = |function| match room {
            Some(room) => short_function(function, room.saturating_sub(beside).max(room / 2)),
            None => Cow::Borrowed(function),
        };
        let name = function.map(|function| on_one_line(name_of(function)));
        let name_width = name.as_deref().map_or(16, |name| name.chars().count());
        let is_source_below = !source.is_empty() && room.is_some_and(|room| name_width + beside > room);
        let text_before = |text: &str| format!("{number:4} {:width$} {text:18} ", "");
        if inlined.is_some() {
            self.line(Style::Plain, &text_before("  inlined"))?;
            self.line(Style::Function, name.as_deref().unwrap_or("?"))?;
        } else {
            self.line(Style::Plain, &format!("{number:4} "))?;
            let module = on_one_line(module_name(frame).into());
            let module: String = module.chars().take(if room.is_some() { width } else { usize::MAX }).collect();
            self.line(Style::Module, &format!("{module:width$}"))?;
            self.line(Style::Plain, " ")?;
            // A frame of a managed runtime has no address.
            let has_address = frame.address.0 != 0 || frame.function.is_none();
            let address = if has_address { format!("{:#018x}", frame.address.0) } else { format!("{:18}", "") };
            self.line(Style::Address, &address)?;
            self.line(Style::Plain, " ")?;
            match (&name, frame.module_offset) {
                (Some(name), _) => self.line(Style::Function, name)?,
                (None, Some(offset)) => self.line(Style::Faint, &format!("+ {offset}"))?,
                (None, None) => self.line(Style::Faint, "in no image")?,
            }
            if name.is_some() && !offset.is_empty() {
                self.line(Style::Faint, &offset)?;
            }
        }
        if !source.is_empty() && !is_source_below {
            self.line(Style::Source, &source)?;
        }
        if inlined.is_none() && frame.named_in_process {
            self.line(Style::Faint, " [named in the process]")?;
        }
        if inlined.is_none() && is_guessed(frame) {
            self.line(Style::Warning, &format!(" [{}]", frame.found_by.to_string().replace('_', " ")))?;
        }
        if is_source_below {
            self.line(Style::Plain, &format!("\n{:width$}", "", width = 4 + 1 + width))?;
            self.line(Style::Source, &source)?;
        }
        self.line(Style::Plain, "\n")
    }

    /// What is said behind a frame, for its width.
    fn note(&self, line: &Line<'_>) -> String {
        let mut note = String::new();
        if line.inlined.is_none() && line.frame.named_in_process {
            note.push_str(" [named in the process]");
        }
        if line.inlined.is_none() && is_guessed(line.frame) {
            // A string takes every piece.
            let _ = write!(note, " [{}]", line.frame.found_by);
        }
        note
    }

    /// ` (file:line:column)`, or nothing.
    fn source(&self, line: &Line<'_>) -> String {
        let (Some(file), line, column) = line.source() else { return String::new() };
        let file = if self.options.short_paths { short_path(file) } else { Cow::Borrowed(file) };
        let mut source = format!(" ({}", on_one_line(file));
        for number in [line, line.and(column)].into_iter().flatten() {
            // A string takes every piece.
            let _ = write!(source, ":{number}");
        }
        source + ")"
    }
}

/// A part of a stack as it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The frame at this place.
    Frame(usize),
    /// The frames before are there so often more, one round of the recursion being so many frames.
    Repeated {
        /// How many frames call each other in a circle.
        round: usize,
        /// How many rounds are not shown.
        times: usize,
    },
}

/// The rounds of a recursion that are shown.
const ROUNDS: usize = 2;

/// The stack without what a recursion repeats: of each, the first two rounds are shown.
pub fn steps(frames: &[Frame]) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut begin = 0;
    while begin < frames.len() {
        let (round, times) = recursion(&frames[begin..]);
        steps.extend((begin..begin + round * times.min(ROUNDS)).map(Step::Frame));
        if times > ROUNDS {
            steps.push(Step::Repeated { round, times: times - ROUNDS });
        }
        begin += round * times;
    }
    steps
}

/// The recursion that frames begin with: how many frames one round has, and how often it is there. `(1, 1)` where there is none
/// that is worth a line.
fn recursion(frames: &[Frame]) -> (usize, usize) {
    /// Functions that call each other in a circle.
    const MAX_LENGTH: usize = 8;
    const WORTH: usize = 5;
    let is_same = |a: &Frame, b: &Frame| a.address == b.address && (a.address.0 != 0 || a == b);
    for round in 1..=MAX_LENGTH.min(frames.len()) {
        let first = &frames[..round];
        let same = |other: &[Frame]| other.iter().zip(first).all(|(a, b)| is_same(a, b));
        let times = frames.chunks_exact(round).take_while(|other| same(other)).count();
        if times >= WORTH {
            return (round, times);
        }
    }
    (1, 1)
}

/// The last component of the path of a frame's image.
fn module_name(frame: &Frame) -> &str {
    if frame.found_by == FoundBy::MANAGED && frame.module.is_none() {
        // What a log says of Go and Rust has no addresses either.
        return match frame.file.as_deref().and_then(|file| file.rsplit_once('.')) {
            Some((_, "go")) => "go",
            Some((_, "rs")) => "rust",
            _ => "java",
        };
    }
    frame.module.as_deref().map_or("?", |path| path.rsplit('/').next().unwrap_or(path))
}

/// Whether it is not sure that the frame is one.
fn is_guessed(frame: &Frame) -> bool {
    matches!(frame.found_by, FoundBy::SCAN | FoundBy::STACK_TOP | FoundBy::LINK_REGISTER)
}

/// A name of somebody else's without what would begin a line of its own, which could look like another part of the report.
fn on_one_line(name: Cow<'_, str>) -> Cow<'_, str> {
    if name.contains(char::is_control) { Cow::Owned(name.replace(char::is_control, " ")) } else { name }
}
