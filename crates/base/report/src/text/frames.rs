//! Stacks as text: a line for each frame and for each function inlined into it.

use super::report::{Writer, count};
use super::source_path::{short_function, short_path};
use super::{Folding, Style};
use crate::model::{Frame, InApp, Skipped};
use crate::wire::FoundBy;
use std::borrow::Cow;
use std::fmt::{self, Write as _};

/// Prefixes of the names of libraries that throw and unwind.
const CPP_RUNTIME: [&str; 4] = ["libstdc++", "libc++", "libgcc_s", "libunwind"];

/// Minimum number of consecutive runtime lines that are folded into one.
const MIN_FOLDED_LINES: usize = 2;

/// Maximum number of characters in each name of a folded line.
const SHORT_NAME: usize = 36;

/// A line of a stack.
#[derive(Clone, Copy)]
struct Line<'f> {
    number: u64,
    frame: &'f Frame,
    /// Index in [`Frame::inlined`]; `None` for the frame's own function.
    inlined: Option<usize>,
}

impl<'f> Line<'f> {
    /// Returns the lines of a frame, innermost first.
    fn from_frame(number: u64, frame: &'f Frame) -> impl Iterator<Item = Line<'f>> {
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

    fn is_runtime(&self, in_app: &InApp<'_>) -> bool {
        self.function().is_some_and(|function| in_app.is_runtime(Some(function), self.source().0))
    }
}

impl Writer<'_> {
    /// Writes an exception's frames, beginning with the app's call if it is known.
    pub(super) fn frames_of_exception(&mut self, frames: &[Frame], skipped: &[Skipped]) -> fmt::Result {
        let in_app = self.in_app;
        let is_of_app = |frame: &Frame| {
            let inlined = frame.inlined.iter().map(|inlined| (inlined.function.as_deref(), inlined.file.as_deref()));
            let all = inlined.chain([(frame.function.as_deref(), frame.file.as_deref())]);
            let mut functions = all.filter(|(function, _)| function.is_some()).peekable();
            if functions.peek().is_none() {
                // A stripped runtime's functions have no names.
                return !CPP_RUNTIME.iter().any(|name| module_name(frame).starts_with(name));
            }
            functions.any(|(function, file)| !in_app.is_runtime(function, file))
        };
        let first = match self.options.folding {
            Folding::None => 0,
            _ => frames.iter().position(is_of_app).unwrap_or(0),
        };
        let first = if skipped.iter().any(|skipped| skipped.after < first) { 0 } else { first };
        if first > 0 {
            self.line(Style::Faint, &format!("     … {} …\n", count(first as u64, "runtime frame")))?;
        }
        self.frames_from(first, frames, skipped)
    }

    pub(super) fn frames(&mut self, frames: &[Frame], skipped: &[Skipped]) -> fmt::Result {
        self.frames_from(0, frames, skipped)
    }

    /// Writes the frames from index `begin` on, before which none were left out.
    fn frames_from(&mut self, mut begin: usize, frames: &[Frame], skipped: &[Skipped]) -> fmt::Result {
        let width = frames.iter().map(|frame| module_name(frame).chars().count()).max().unwrap_or(0);
        let width = width.clamp(6, if self.options.width.is_some_and(|width| width < 100) { 16 } else { 32 });
        // Frames keep their number in the whole stack.
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

    /// Writes frames without a gap between them.
    ///
    /// Only the first two rounds of a recursion are written, unless folding is disabled.
    fn run_of_frames(&mut self, number: u64, frames: &[Frame], width: usize) -> fmt::Result {
        let mut lines: Vec<Line<'_>> = Vec::new();
        if self.options.folding == Folding::None {
            lines.extend((number..).zip(frames).flat_map(|(number, frame)| Line::from_frame(number, frame)));
            return self.lines(&lines, width);
        }
        for step in steps(frames) {
            match step {
                Step::Frame(place) => lines.extend(Line::from_frame(number + place as u64, &frames[place])),
                Step::Repeated { round, times } => {
                    self.lines(&std::mem::take(&mut lines), width)?;
                    let what = if round == 1 { "this frame".to_owned() } else { format!("these {round} frames") };
                    self.line(Style::Faint, &format!("     … {what} {times} more times …\n"))?;
                }
            }
        }
        self.lines(&lines, width)
    }

    /// Writes consecutive lines; those of a runtime as one, unless folding is disabled.
    ///
    /// The innermost line is always written.
    fn lines(&mut self, mut lines: &[Line<'_>], width: usize) -> fmt::Result {
        let in_app = self.in_app;
        while let Some(first) = lines.first() {
            let is_innermost = first.number == 0 && first.inlined.is_none_or(|index| index == 0);
            let folded = match self.options.folding < Folding::Runtime || is_innermost {
                true => 0,
                false => lines.iter().take_while(|line| line.is_runtime(&in_app)).count(),
            };
            if folded >= MIN_FOLDED_LINES {
                let (from, to) = (first.function().unwrap_or("?"), lines[folded - 1].function().unwrap_or("?"));
                let (from, to) = (short_function(from, SHORT_NAME), short_function(to, SHORT_NAME));
                self.line(Style::Faint, &format!("     … {folded} runtime functions: {from} … {to}\n"))?;
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
        // A name that is too long for the terminal first loses its arguments; the source then moves
        // to a line of its own.
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
                (None, None) => self.line(Style::Faint, "outside all images")?,
            }
            if name.is_some() && !offset.is_empty() {
                self.line(Style::Faint, &offset)?;
            }
        }
        if !source.is_empty() && !is_source_below {
            self.line(Style::Source, &source)?;
        }
        if inlined.is_none() && frame.named_in_process {
            self.line(Style::Faint, " [named in-process]")?;
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

    /// Returns the note after a frame, to measure its width.
    fn note(&self, line: &Line<'_>) -> String {
        let mut note = String::new();
        if line.inlined.is_none() && line.frame.named_in_process {
            note.push_str(" [named in-process]");
        }
        if line.inlined.is_none() && is_guessed(line.frame) {
            // Writing to a `String` can't fail.
            let _ = write!(note, " [{}]", line.frame.found_by);
        }
        note
    }

    /// Returns ` (file:line:column)`, or an empty string.
    fn source(&self, line: &Line<'_>) -> String {
        let (Some(file), line, column) = line.source() else { return String::new() };
        let file = if self.options.short_paths { short_path(file) } else { Cow::Borrowed(file) };
        let mut source = format!(" ({}", on_one_line(file));
        for number in [line, line.and(column)].into_iter().flatten() {
            // Writing to a `String` can't fail.
            let _ = write!(source, ":{number}");
        }
        source + ")"
    }
}

/// A step of a stack's display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The frame at this index.
    Frame(usize),
    /// A repetition of the preceding frames.
    Repeated {
        /// Number of frames in one round of the recursion.
        round: usize,
        /// Number of rounds that are not shown.
        times: usize,
    },
}

/// Number of rounds of a recursion that are shown.
const ROUNDS: usize = 2;

/// Folds a stack's recursions: the first two rounds of each are shown.
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

/// Returns the round length and the number of rounds of the recursion at the start of `frames`.
///
/// `(1, 1)` if there is no recursion that is worth a line.
fn recursion(frames: &[Frame]) -> (usize, usize) {
    /// Maximum number of functions in a round.
    const MAX_LENGTH: usize = 8;
    /// Minimum number of rounds that are folded.
    const MIN_ROUNDS: usize = 5;
    let is_same = |a: &Frame, b: &Frame| a.address == b.address && (a.address.0 != 0 || a == b);
    for round in 1..=MAX_LENGTH.min(frames.len()) {
        let first = &frames[..round];
        let same = |other: &[Frame]| other.iter().zip(first).all(|(a, b)| is_same(a, b));
        let times = frames.chunks_exact(round).take_while(|other| same(other)).count();
        if times >= MIN_ROUNDS {
            return (round, times);
        }
    }
    (1, 1)
}

/// Returns the last component of the path of a frame's image.
fn module_name(frame: &Frame) -> &str {
    if frame.found_by == FoundBy::MANAGED && frame.module.is_none() {
        // Frames of Go and Rust from a log have no addresses either.
        return match frame.file.as_deref().and_then(|file| file.rsplit_once('.')) {
            Some((_, "go")) => "go",
            Some((_, "rs")) => "rust",
            _ => "java",
        };
    }
    frame.module.as_deref().map_or("?", |path| path.rsplit('/').next().unwrap_or(path))
}

/// Whether the frame may be a false one.
fn is_guessed(frame: &Frame) -> bool {
    matches!(frame.found_by, FoundBy::SCAN | FoundBy::STACK_TOP | FoundBy::LINK_REGISTER)
}

/// Replaces control characters in a foreign name.
///
/// A line break could otherwise look like another part of the report.
fn on_one_line(name: Cow<'_, str>) -> Cow<'_, str> {
    if name.contains(char::is_control) { Cow::Owned(name.replace(char::is_control, " ")) } else { name }
}
