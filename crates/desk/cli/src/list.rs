//! `coroner list`.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anstyle::{AnsiColor, Style};
use coroner_report::model::Timestamp;
use serde::Serializer as _;

use crate::failure::Failure;
use crate::filter::Filter;
use crate::listing::{Listed, Listing};
use crate::report_reader::Texts;
use crate::summary::State;
use crate::symbol_search::ListSymbols;
use crate::terminal::{self, MAX_COLUMN, NamedOutput, Output, truncate};
use crate::watch::Watch;
use crate::{Format, outboxes};

/// Lists the reports in the store or folder at `path` that match the filter.
pub(crate) fn run(
    path: &Path,
    texts: Texts,
    format: Format,
    filter: &Filter,
    symbols: ListSymbols,
) -> Result<(), Failure> {
    let (mut names, is_named) = symbols.symbolizer()?;
    let mut listing = Listing::open(path, texts, Some(&mut names), is_named)?;
    let all = listing.len();
    filter.apply(&mut listing);
    print(&listing, all, path, format)?;
    Listing::check_unread(listing.unread(), all)
}

/// Interval between checks of the store, which is longer if a check takes more than a tenth of it.
const INTERVAL: Duration = Duration::from_millis(500);

/// Lists the existing reports, then new ones as they arrive.
///
/// It continues until the process ends or the output is closed. Each report is one write, so that
/// the end truncates no line. A store that disappears may come back; its disappearance is reported
/// once.
pub(crate) fn watch(
    path: &Path,
    texts: Texts,
    format: Format,
    filter: &Filter,
    symbols: ListSymbols,
) -> Result<(), Failure> {
    let (mut names, is_named) = symbols.symbolizer()?;
    let mut watch = Watch::new(path, texts, is_named);
    let mut new = watch.poll(&mut names)?;
    let mut is_gone = false;
    loop {
        let began = Instant::now();
        filter.apply_to_new(&mut new);
        for summary in &new {
            let mut line = Vec::new();
            match format {
                Format::Json => {
                    serde_json::to_writer(&mut line, summary)?;
                    line.push(b'\n');
                }
                Format::Text => Lines::new(Columns::watched(), true).add(Listed::from(summary), &mut line),
            }
            let mut out = NamedOutput(anstream::AutoStream::auto(std::io::stdout()));
            out.write_all(&line)?;
            out.flush()?;
        }
        std::thread::sleep(INTERVAL.max(began.elapsed() * 10));
        new = match watch.poll(&mut names) {
            Ok(new) => {
                is_gone = false;
                new
            }
            Err(failure) => {
                if !is_gone {
                    failure.advice("waiting for it to come back; press Ctrl-C to stop").print();
                }
                is_gone = true;
                Vec::new()
            }
        };
    }
}

fn print(listing: &Listing, all: usize, path: &Path, format: Format) -> Result<(), Failure> {
    if format == Format::Json {
        let mut out = std::io::BufWriter::with_capacity(BLOCK, NamedOutput(std::io::stdout().lock()));
        let mut json = serde_json::Serializer::pretty(&mut out);
        json.collect_seq(listing.iter().map(Listed::to_summary))?;
        return Ok(writeln!(out).and_then(|()| out.flush())?);
    }
    if listing.len() == 0 {
        match all {
            0 if listing.unread() > 0 => {}
            0 => anstream::eprintln!("no reports in `{}`{}", path.display(), outboxes::summary(path)),
            _ => anstream::eprintln!("no reports in `{}` match the filter ({all} in total)", path.display()),
        }
        return Ok(());
    }
    let mut out = Output::paged().without_styles();
    let mut lines = Lines::new(Columns::for_listing(listing), out.has_styles());
    let mut block = Vec::with_capacity(2 * BLOCK);
    for listed in listing.iter() {
        lines.add(listed, &mut block);
        if block.len() >= BLOCK {
            out.write_all(&block)?;
            block.clear();
        }
    }
    out.write_all(&block)?;
    Ok(out.flush()?)
}

/// Bytes per write.
const BLOCK: usize = 1 << 16;

/// The widths of a line's columns.
struct Columns {
    width: Option<usize>,
    /// Characters of the longest app with its version.
    app: usize,
    /// Digits of an event id.
    digits: usize,
}

impl Columns {
    /// Creates the columns: on a terminal, ids are shortened to the digits that distinguish them.
    ///
    /// Programs get complete ids.
    fn for_listing(listing: &Listing) -> Columns {
        let width = terminal::width().filter(|_| terminal::is_terminal());
        let length = |listed: Listed<'_>| {
            let version = listed.version.chars().count();
            listed.app.chars().count() + if version > 0 { 1 + version } else { 0 }
        };
        let app = listing.iter().map(length).max().unwrap_or(0).min(app_width(width));
        Columns { width, app, digits: if width.is_some() { distinct_digits(listing) } else { 32 } }
    }

    /// Columns for reports that are not known yet.
    fn watched() -> Columns {
        let width = terminal::width().filter(|_| terminal::is_terminal());
        Columns { width, app: 0, digits: if width.is_some() { 12 } else { 32 } }
    }
}

/// Returns the maximum characters of an app with its version.
fn app_width(width: Option<usize>) -> usize {
    width.map_or(MAX_COLUMN, |width| width / 4)
}

/// Formats the lines of reports, with little work for each.
///
/// There may be a hundred thousand.
struct Lines {
    columns: Columns,
    styled: bool,
    /// Days since 1970, and that date as text.
    day: (u64, String),
    time: String,
    text: String,
}

/// A day in seconds.
const DAY: u64 = 86_400;

impl Lines {
    fn new(columns: Columns, styled: bool) -> Lines {
        Lines { columns, styled, day: (u64::MAX, String::new()), time: String::new(), text: String::new() }
    }

    fn add(&mut self, listed: Listed<'_>, out: &mut Vec<u8>) {
        let Columns { width, app: longest, digits } = self.columns;
        let Listed { event_id, app, version, what, function, line, state, .. } = listed;
        self.set_time(listed.time);
        self.put(Style::new().dimmed(), &self.time, out);
        let id = event_id.get(..digits).unwrap_or(event_id);
        out.extend(b"  ");
        out.extend(id.as_bytes());
        // An unreadable run has no id.
        out.extend(std::iter::repeat_n(b' ', digits.saturating_sub(id.len()) + 2));
        self.set_text(&[app, if version.is_empty() { "" } else { " " }, version]);
        let app = truncate(&self.text, Some(app_width(width)));
        let length = app.chars().count();
        self.put(Style::new().bold(), &app, out);
        out.extend(std::iter::repeat_n(b' ', longest.saturating_sub(length) + 2));
        let note = match state {
            State::Stored => "",
            State::Pending => "  pending until the app's next launch",
            State::Broken(_) => "  broken",
        };
        let room = width.map(|width| {
            let before = self.time.len() + 2 + digits + 2 + length.max(longest) + 2;
            width.saturating_sub(before + note.chars().count()).max(16)
        });
        let (is_in, opening, closing) = (
            if function.is_some() { " in " } else { "" },
            if line.is_some() { " (" } else { "" },
            if line.is_some() { ")" } else { "" },
        );
        self.set_text(&[what, is_in, function.unwrap_or_default(), opening, line.unwrap_or_default(), closing]);
        out.extend(truncate(&self.text, room.or(Some(MAX_COLUMN))).as_bytes());
        let colour = |colour: AnsiColor| Style::new().fg_color(Some(colour.into()));
        match state {
            State::Stored => {}
            State::Pending => self.put(colour(AnsiColor::Yellow), note, out),
            State::Broken(why) => {
                self.put(colour(AnsiColor::Red), note, out);
                out.extend(b"\n    ");
                self.put(
                    colour(AnsiColor::Red),
                    &truncate(why, Some(width.map_or(MAX_COLUMN, |width| width.saturating_sub(4)))),
                    out,
                );
                out.extend(b"\n    ");
                out.extend(truncate(&listed.path(), None).as_bytes());
            }
        }
        out.push(b'\n');
    }

    fn put(&self, style: Style, text: &str, out: &mut Vec<u8>) {
        if self.styled {
            out.extend(format!("{style}{text}{style:#}").as_bytes());
        } else {
            out.extend(text.as_bytes());
        }
    }

    fn set_text(&mut self, parts: &[&str]) {
        self.text.clear();
        self.text.extend(parts.iter().copied());
    }

    /// Sets the time to the second; the fraction is only for programs.
    fn set_time(&mut self, time: Timestamp) {
        let seconds = time.0 / 1_000_000_000;
        if self.day.0 != seconds / DAY {
            let midnight = Timestamp(seconds / DAY * DAY * 1_000_000_000).to_string();
            self.day = (seconds / DAY, midnight.split('T').next().unwrap_or_default().to_owned());
        }
        self.time.clear();
        self.time.push_str(&self.day.1);
        let of_day = seconds % DAY;
        for (separator, number) in [(' ', of_day / 3600), (':', of_day / 60 % 60), (':', of_day % 60)] {
            let digit = |number: u64| char::from(b'0' + (number % 10) as u8);
            self.time.extend([separator, digit(number / 10), digit(number)]);
        }
    }
}

/// Returns the number of digits that distinguish all ids, at least 8.
fn distinct_digits(listing: &Listing) -> usize {
    let mut ids: Vec<&str> = listing.iter().map(|listed| listed.event_id).collect();
    ids.sort_unstable();
    ids.dedup();
    let common = |a: &str, b: &str| a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    let most = ids.windows(2).map(|pair| common(pair[0], pair[1]) + 1).max().unwrap_or(0);
    most.clamp(8, 32)
}
