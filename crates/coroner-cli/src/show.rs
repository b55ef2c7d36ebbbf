//! `coroner show`.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use anstyle::{AnsiColor, Style};
use coroner::Report;
use coroner_report::text::{self, TextOptions, ThreadFilter};

use crate::Format;
use crate::failure::Failure;
use crate::reports;
use crate::symbol_search::SymbolArguments;

/// Shows the report that `what` names: a path, or the beginning of an event id in `store`.
pub(crate) fn run(
    what: &str,
    format: Format,
    threads: ThreadFilter,
    store: Option<&Path>,
    texts: reports::Texts,
    symbols: &SymbolArguments,
) -> Result<(), Failure> {
    let mut report = reports::open_one(what, store, texts, Some(&symbols.search()?))?;
    let mut out = anstream::stdout().lock();
    match format {
        Format::Text => print(&report, threads, &mut out),
        Format::Json => {
            keep_thread(&mut report, threads)?;
            Ok(writeln!(out, "{}", report.to_json())?)
        }
    }
}

/// Drops all threads but the one that is asked for by its number, for JSON. That is for programs, which can choose threads
/// themselves; `crashed` is what people see by default.
pub(crate) fn keep_thread(report: &mut Report, threads: ThreadFilter) -> Result<(), Failure> {
    match threads {
        ThreadFilter::Number(number) if !report.retain_threads(&threads) => Err(no_thread(report, number)),
        _ => Ok(()),
    }
}

pub(crate) fn print(report: &Report, threads: ThreadFilter, out: &mut impl Write) -> Result<(), Failure> {
    if let ThreadFilter::Number(number) = threads
        && threads.threads(report).is_empty()
    {
        return Err(no_thread(report, number));
    }
    let all = threads == ThreadFilter::All;
    let options = TextOptions { threads, images: all, ..TextOptions::default() };
    let mut painter = Painter { out, error: None };
    if report.write_text(&mut painter, &options).is_err() {
        return Err(painter.error.unwrap_or_else(|| io::Error::other("the report can't be written as text")).into());
    }
    Ok(())
}

fn no_thread(report: &Report, number: u64) -> Failure {
    let tids: Vec<String> = report.threads.iter().take(20).map(|thread| thread.tid.to_string()).collect();
    Failure::new(format!("the report has no thread {number}")).advice(format!(
        "its threads are 0 to {}, or by id {}",
        report.threads.len().saturating_sub(1),
        tids.join(", ")
    ))
}

struct Painter<'a, W> {
    out: &'a mut W,
    /// Why writing failed; `fmt::Error` can't say it.
    error: Option<io::Error>,
}

impl<W: Write> text::Sink for Painter<'_, W> {
    fn piece(&mut self, kind: text::Style, text: &str) -> fmt::Result {
        let style = style(kind);
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
