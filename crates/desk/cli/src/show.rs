//! `coroner show`.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use anstyle::{AnsiColor, Style};
use coroner::{Report, otlp};
use coroner_explain::{Explanation, ImageFiles, explain};
use coroner_report::text::{self, Folding, TextOptions, ThreadFilter};
use coroner_symbols::Symbolizer;

use crate::explanation_text;
use crate::failure::Failure;
use crate::symbol_search::{self, SymbolArguments};
use crate::terminal::{self, Output, is_control};
use crate::{ReportFormat, atomic_file, markdown, page, report_lookup, report_reader};

/// The options for showing a report.
pub(crate) struct View<'a> {
    pub(crate) format: ReportFormat,
    pub(crate) threads: ThreadFilter,
    pub(crate) texts: report_reader::Texts,
    /// Whether each frame has a line.
    pub(crate) all_frames: bool,
    /// The output file; `None` for standard output.
    pub(crate) output: Option<&'a Path>,
}

/// Shows the report that `what` names: a path, an id's prefix, or `None` for the store's newest.
pub(crate) fn run(
    what: Option<&str>,
    store: Option<&Path>,
    symbols: &SymbolArguments,
    view: &View<'_>,
) -> Result<(), Failure> {
    let mut symbolizer = symbols.symbolizer_for(what)?;
    let report = report_lookup::open_one(what, store, view.texts, Some(&mut symbolizer))?;
    symbols.match_images(&symbol_search::image_keys(&report));
    present(report, &mut symbolizer, view)
}

/// Shows a symbolicated report.
pub(crate) fn present(mut report: Report, symbolizer: &mut Symbolizer, view: &View<'_>) -> Result<(), Failure> {
    let code = ImageFiles::for_report(&report, symbolizer);
    let explanation = explain(&report, &code);
    let text = match view.format {
        ReportFormat::Text => {
            let layout = Layout {
                all_frames: view.all_frames,
                width: terminal::width().filter(|_| view.output.is_none()),
                below_stack: symbol_search::explain_missing_names(&mut report, symbolizer),
            };
            return match view.output {
                Some(path) => {
                    let mut text = anstream::StripStream::new(Vec::new());
                    print(&report, Some(&explanation), view.threads, layout, &mut text)?;
                    atomic_file::write(path, &text.into_inner())
                }
                None => {
                    print(&report, Some(&explanation), view.threads, layout, &mut io::BufWriter::new(Output::paged()))
                }
            };
        }
        ReportFormat::Json => {
            keep_thread(&mut report, view.threads)?;
            report.explanation = Some(explanation);
            report.to_json() + "\n"
        }
        ReportFormat::Markdown => markdown::render(&report, &code),
        ReportFormat::Html => page::render(&report, &explanation),
        ReportFormat::Otlp => {
            report.explanation = Some(explanation);
            serde_json::to_string_pretty(&otlp::request(&report, &otlp::Labels::default()))? + "\n"
        }
    };
    match view.output {
        Some(path) => atomic_file::write(path, text.as_bytes()),
        None => Ok(terminal::print(text.as_bytes(), matches!(view.format, ReportFormat::Json | ReportFormat::Otlp))?),
    }
}

/// The layout of a report's text.
#[derive(Clone, Default)]
pub(crate) struct Layout {
    pub(crate) all_frames: bool,
    /// The number of columns available.
    pub(crate) width: Option<usize>,
    /// A line to print below the reported stack.
    pub(crate) below_stack: Option<String>,
}

impl Layout {
    /// The layout for standard output, as most commands show a report.
    pub(crate) fn for_terminal() -> Layout {
        Layout { width: terminal::width(), ..Layout::default() }
    }
}

/// Drops all threads except the one requested by number, for JSON.
///
/// JSON is for programs, which can select threads themselves; `crashed` is only the default for
/// people.
pub(crate) fn keep_thread(report: &mut Report, threads: ThreadFilter) -> Result<(), Failure> {
    match threads {
        ThreadFilter::Number(number) if !report.retain_threads(&threads) => Err(no_thread(report, number)),
        _ => Ok(()),
    }
}

/// Writes a report as text, below its explanation.
pub(crate) fn print(
    report: &Report,
    explanation: Option<&Explanation>,
    threads: ThreadFilter,
    layout: Layout,
    out: &mut impl Write,
) -> Result<(), Failure> {
    if let ThreadFilter::Number(number) = threads
        && threads.threads(report).is_empty()
    {
        return Err(no_thread(report, number));
    }
    let all = threads == ThreadFilter::All;
    let Layout { all_frames, width, below_stack } = layout;
    let folding = if all_frames { Folding::None } else { Folding::Runtime };
    let options =
        TextOptions { threads, images: all, folding, short_paths: true, width, below_stack, ..TextOptions::default() };
    let mut painter = Painter { out, width, column: 0, error: None };
    let explained = explanation.map_or(Ok(()), |explanation| explanation_text::write(explanation, &mut painter));
    let explained = explained.and_then(|()| explanation_text::write_profile(report, &mut painter));
    if explained.and_then(|()| report.write_text(&mut painter, &options)).is_err() {
        return Err(painter.error.unwrap_or_else(|| io::Error::other("can't write the report as text")).into());
    }
    Ok(painter.out.flush()?)
}

fn no_thread(report: &Report, number: u64) -> Failure {
    let tids: Vec<String> = report.threads.iter().take(20).map(|thread| thread.tid.to_string()).collect();
    Failure::new(format!("the report has no thread {number}")).advice(format!(
        "expected an index from 0 to {}, or a thread ID: {}",
        report.threads.len().saturating_sub(1),
        tids.join(", ")
    ))
}

struct Painter<'a, W> {
    out: &'a mut W,
    /// Maximum columns of a line.
    width: Option<usize>,
    /// The characters of the line so far.
    column: usize,
    /// The reason writing failed, which `fmt::Error` can't contain.
    error: Option<io::Error>,
}

/// Indentation of a line's continuation if it is wider than the terminal.
const INDENT: usize = 8;

/// Minimum hexadecimal digits of an event id or build ID, which is kept whole for copying.
const MIN_ID_DIGITS: usize = 32;

impl<W: Write> Painter<'_, W> {
    /// Breaks lines that are too wide: between words, and within words longer than a line.
    ///
    /// An id is not broken.
    fn wrap(&mut self, text: &str) -> String {
        let mut wrapped = String::with_capacity(text.len());
        for word in text.split_inclusive(char::is_whitespace) {
            let bare = word.trim_end_matches(char::is_whitespace);
            self.put(bare, &mut wrapped);
            for space in word.get(bare.len()..).unwrap_or_default().chars() {
                if space == '\n' {
                    self.column = 0;
                } else if self.column >= self.width.unwrap_or(usize::MAX) {
                    // The line ends here.
                    continue;
                } else {
                    self.column += 1;
                }
                // Don't let the terminal interpret names in a report.
                wrapped.push(if is_control(space) { '\u{fffd}' } else { space });
            }
        }
        wrapped
    }

    fn put(&mut self, word: &str, wrapped: &mut String) {
        let width = self.width.unwrap_or(usize::MAX);
        let length = word.chars().count();
        let is_digit = |character: char| character.is_ascii_hexdigit() || character == '-';
        let is_id = word.split(|character| !is_digit(character)).any(|digits| digits.len() >= MIN_ID_DIGITS);
        let next_line = |column: &mut usize, indent: usize, wrapped: &mut String| {
            wrapped.push('\n');
            wrapped.extend(std::iter::repeat_n(' ', indent));
            *column = indent;
        };
        if self.column + length > width && self.column > INDENT && (is_id || INDENT + length <= width) {
            next_line(&mut self.column, INDENT.min(width.saturating_sub(length)), wrapped);
        }
        for character in word.chars() {
            if self.column >= width && !is_id {
                next_line(&mut self.column, INDENT, wrapped);
            }
            wrapped.push(if is_control(character) { '\u{fffd}' } else { character });
            self.column += 1;
        }
    }
}

impl<W: Write> text::Sink for Painter<'_, W> {
    fn piece(&mut self, kind: text::Style, text: &str) -> fmt::Result {
        let style = style(kind);
        let text = self.wrap(text);
        write!(self.out, "{style}{text}{style:#}").map_err(|error| {
            self.error = Some(error);
            fmt::Error
        })
    }
}

fn style(kind: text::Style) -> Style {
    let colour = |colour: AnsiColor| Style::new().fg_color(Some(colour.into()));
    match kind {
        text::Style::Heading => Style::new().bold(),
        text::Style::Alarm => colour(AnsiColor::Red).bold(),
        text::Style::Warning => colour(AnsiColor::Yellow),
        text::Style::Function => colour(AnsiColor::Cyan),
        text::Style::Source => colour(AnsiColor::Green),
        text::Style::Module => colour(AnsiColor::Blue),
        text::Style::Label | text::Style::Address | text::Style::Faint => Style::new().dimmed(),
        _ => Style::new(),
    }
}
