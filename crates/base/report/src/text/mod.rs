//! The forms in which people and scripts read a report: text in the manner of Apple's crash reports, and JSON.
//!
//! The text is made of pieces, each with a [`Style`] that says what it is; colour is the caller's affair. For plain
//! text: [`Report::to_text`].

mod frames;
mod json_head;
mod registers;
mod report;
mod source_path;

pub use frames::{Step, steps};
pub use source_path::{short_function, short_path};

use crate::model::{Frame, Report, Skipped, Thread};
use std::fmt;
use std::str::FromStr;

/// What a piece of text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Style {
    /// Nothing special, spaces and line ends included.
    Plain,
    /// Heading of a part.
    Heading,
    /// Name of a field.
    Label,
    /// What the report is about: the crash, the thread that crashed.
    Alarm,
    /// What is missing or damaged.
    Warning,
    /// A function's name.
    Function,
    /// A source file and line.
    Source,
    /// An address or a register's value.
    Address,
    /// An image's name.
    Module,
    /// Of less interest.
    Faint,
}

/// Where a report's text goes.
pub trait Sink {
    /// Takes the next piece.
    ///
    /// # Errors
    /// [`fmt::Error`] where it can't be taken; no more are sent then.
    fn piece(&mut self, style: Style, text: &str) -> fmt::Result;
}

/// Plain text.
impl Sink for String {
    fn piece(&mut self, _: Style, text: &str) -> fmt::Result {
        self.push_str(text);
        Ok(())
    }
}

/// Which threads to show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThreadFilter {
    /// All.
    #[default]
    All,
    /// Those that crashed.
    Crashed,
    /// The one with this number: the system's, or else its place in the report from 0.
    Number(u64),
}

impl FromStr for ThreadFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(ThreadFilter::All),
            "crashed" => Ok(ThreadFilter::Crashed),
            number => number
                .parse()
                .map(ThreadFilter::Number)
                .map_err(|_| format!("`{text}` is neither `crashed` nor `all` nor the number of a thread")),
        }
    }
}

impl ThreadFilter {
    /// The threads of `report` that it lets through, with their places in the report.
    pub fn threads<'r>(&self, report: &'r Report) -> Vec<(usize, &'r Thread)> {
        let threads = report.threads.iter().enumerate();
        match *self {
            ThreadFilter::All => threads.collect(),
            ThreadFilter::Crashed => threads.filter(|(_, thread)| thread.crashed).collect(),
            ThreadFilter::Number(number) => {
                let by_tid: Vec<_> = threads.clone().filter(|(_, thread)| thread.tid == number).collect();
                if by_tid.is_empty() { threads.filter(|(place, _)| *place as u64 == number).collect() } else { by_tid }
            }
        }
    }
}

/// Which frames of a stack have no line of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Folding {
    /// None: each frame has its line.
    None,
    /// The rounds of a recursion after the second, and what a C++ or Rust runtime called to throw.
    #[default]
    Repeats,
    /// Those, and where several functions of a runtime are one after the other
    /// ([`is_runtime_code`](crate::model::is_runtime_code)).
    Runtime,
}

/// What to show.
#[derive(Clone, Debug)]
pub struct TextOptions {
    /// Which threads.
    pub threads: ThreadFilter,
    /// The registers of the threads that crashed (and of a thread that was asked for by its number).
    pub registers: bool,
    /// The loaded images.
    pub images: bool,
    /// Breadcrumbs, tags and contexts.
    pub scope: bool,
    /// Which frames one line stands for.
    pub folding: Folding,
    /// Source paths are shortened ([`short_path`]).
    pub short_paths: bool,
    /// The columns that a line of a stack should fit into: long names are shortened, and the source has a line of its own.
    pub width: Option<usize>,
    /// A line below the stack of the thread that the report is of: why it has no names.
    pub below_stack: Option<String>,
}

impl Default for TextOptions {
    fn default() -> Self {
        TextOptions {
            threads: ThreadFilter::All,
            registers: true,
            images: true,
            scope: true,
            folding: Folding::Repeats,
            short_paths: false,
            width: None,
            below_stack: None,
        }
    }
}

/// Writes the frames of a stack, the innermost first, a line for each and for each function that is inlined into it, as reports show
/// them.
///
/// # Errors
/// What the sink returns.
pub fn write_frames(sink: &mut dyn Sink, frames: &[Frame]) -> fmt::Result {
    write_stack(sink, frames, &[])
}

/// The same, of a stack of which frames were left out.
///
/// # Errors
/// What the sink returns.
pub fn write_stack(sink: &mut dyn Sink, frames: &[Frame], skipped: &[Skipped]) -> fmt::Result {
    report::Writer { sink, report: &Report::default(), options: &TextOptions::default() }.frames(frames, skipped)
}

impl Report {
    /// Writes the report as text, piece by piece.
    ///
    /// # Errors
    /// What the sink returns.
    pub fn write_text(&self, sink: &mut dyn Sink, options: &TextOptions) -> fmt::Result {
        report::Writer { sink, report: self, options }.all()
    }

    /// The report as plain text.
    pub fn to_text(&self, options: &TextOptions) -> String {
        let mut text = String::new();
        // A string takes every piece.
        let _ = self.write_text(&mut text, options);
        text
    }

    /// The report as indented JSON. `docs/report-format.md` lists the names; addresses are texts such as `"0x1f"`,
    /// times RFC 3339, bytes hexadecimal digits.
    pub fn to_json(&self) -> String {
        // It fails for map keys that are no text alone, of which there are none.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// The report whose JSON form this is, as far as JSON has it: registers of unknown architectures lose their order, bytes among the app's
    /// values are text.
    ///
    /// # Errors
    /// It is no JSON, or none of a report.
    pub fn from_json(json: &str) -> serde_json::Result<Report> {
        let mut report: Report = serde_json::from_str(json)?;
        if report.header.event_id.is_nil() {
            return Err(serde::de::Error::custom("it has no event id of a Coroner report (`header.event_id`)"));
        }
        report.name_numbers();
        Ok(report)
    }

    /// Leaves only the threads that `filter` lets through. `false` (and nothing changed) where that would be none.
    pub fn retain_threads(&mut self, filter: &ThreadFilter) -> bool {
        let places: Vec<usize> = filter.threads(self).iter().map(|(place, _)| *place).collect();
        if places.is_empty() {
            return false;
        }
        let mut place = 0;
        self.threads.retain(|_| {
            place += 1;
            places.contains(&(place - 1))
        });
        true
    }
}
