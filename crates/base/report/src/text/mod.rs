//! Readable forms of a report: text in the style of Apple's crash reports, and JSON.
//!
//! The text consists of pieces, each with a [`Style`] for its meaning; colour is up to the caller.
//! For plain text, use [`Report::to_text`].

mod frames;
mod json_head;
mod registers;
mod report;
mod source_path;

pub use frames::{Step, steps};
pub use source_path::{short_function, short_path};

use crate::model::{Frame, InApp, InAppRules, Report, Skipped, Thread};
use std::fmt;
use std::str::FromStr;

/// The meaning of a piece of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Style {
    /// Nothing special, spaces and line ends included.
    Plain,
    /// Heading of a part.
    Heading,
    /// Name of a field.
    Label,
    /// The subject of the report: the crash, the thread that crashed.
    Alarm,
    /// Missing or damaged data.
    Warning,
    /// A function's name.
    Function,
    /// A source file and line.
    Source,
    /// An address or a register's value.
    Address,
    /// An image's name.
    Module,
    /// Less important text.
    Faint,
}

/// Receives a report's text.
pub trait Sink {
    /// Receives the next piece.
    ///
    /// # Errors
    /// [`fmt::Error`] if the piece can't be written; no more pieces are sent then.
    fn piece(&mut self, style: Style, text: &str) -> fmt::Result;
}

/// Collects plain text.
impl Sink for String {
    fn piece(&mut self, _: Style, text: &str) -> fmt::Result {
        self.push_str(text);
        Ok(())
    }
}

/// Selection of the threads to show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThreadFilter {
    /// All threads.
    #[default]
    All,
    /// The threads that crashed.
    Crashed,
    /// The thread with this number: its system id, or else its index in the report from 0.
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
                .map_err(|_| "expected a thread number, `crashed` or `all`".to_owned()),
        }
    }
}

impl ThreadFilter {
    /// Returns the threads of `report` that match, with their indices in the report.
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

/// Folding of stack frames, which then have no line of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Folding {
    /// None: each frame has its line.
    None,
    /// Rounds of a recursion after the second, and a C++ or Rust runtime's calls to throw.
    #[default]
    Repeats,
    /// Those of `Repeats`, and consecutive functions of a runtime.
    ///
    /// See [`is_runtime_code`](crate::model::is_runtime_code).
    Runtime,
}

/// Options for the text form.
#[derive(Clone, Debug)]
pub struct TextOptions {
    /// Threads to show.
    pub threads: ThreadFilter,
    /// Whether to show the registers of crashed threads, and of a thread selected by number.
    pub registers: bool,
    /// Whether to show the loaded images.
    pub images: bool,
    /// Whether to show breadcrumbs, tags and contexts.
    pub scope: bool,
    /// Frames to fold.
    pub folding: Folding,
    /// Whether to shorten source paths ([`short_path`]).
    pub short_paths: bool,
    /// Width in columns of a stack line: longer names are shortened, and the source gets its own
    /// line.
    pub width: Option<usize>,
    /// A line below the crashed thread's stack, which explains why it has no names.
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

/// Writes the frames of a stack as in a report, innermost first.
///
/// Each frame and each function inlined into it has a line.
///
/// # Errors
/// The error of the sink.
pub fn write_frames(sink: &mut dyn Sink, frames: &[Frame]) -> fmt::Result {
    write_stack(sink, frames, &[])
}

/// Writes the frames of a stack of which frames were left out, like [`write_frames`].
///
/// # Errors
/// The error of the sink.
pub fn write_stack(sink: &mut dyn Sink, frames: &[Frame], skipped: &[Skipped]) -> fmt::Result {
    let (report, rules) = (Report::default(), InAppRules::default());
    let in_app = InApp::new(&rules, &report);
    report::Writer { sink, report: &report, options: &TextOptions::default(), in_app }.frames(frames, skipped)
}

impl Report {
    /// Writes the report as text, piece by piece.
    ///
    /// # Errors
    /// The error of the sink.
    pub fn write_text(&self, sink: &mut dyn Sink, options: &TextOptions) -> fmt::Result {
        let rules = InAppRules::default();
        report::Writer { sink, report: self, options, in_app: InApp::new(&rules, self) }.all()
    }

    /// Returns the report as plain text.
    pub fn to_text(&self, options: &TextOptions) -> String {
        let mut text = String::new();
        // Writing to a `String` can't fail.
        let _ = self.write_text(&mut text, options);
        text
    }

    /// Returns the report as indented JSON.
    ///
    /// `docs/report-format.md` lists the names; addresses are texts such as `"0x1f"`, times RFC
    /// 3339, bytes hexadecimal digits.
    pub fn to_json(&self) -> String {
        // Fails only for map keys that are not text, and there are none.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Reads a report from its JSON form, as far as JSON preserves it.
    ///
    /// Registers of unknown architectures lose their order, and bytes among the app's values become
    /// text.
    ///
    /// # Errors
    /// If `json` is not valid JSON, or not that of a report.
    pub fn from_json(json: &str) -> serde_json::Result<Report> {
        let mut report: Report = serde_json::from_str(json)?;
        if report.header.event_id.is_nil() {
            return Err(serde::de::Error::custom("missing or invalid event id (`header.event_id`)"));
        }
        report.name_numbers();
        Ok(report)
    }

    /// Keeps only the threads that match `filter`. `false` (and no change) if none would remain.
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
