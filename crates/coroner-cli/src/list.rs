//! `coroner list`.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anstyle::{AnsiColor, Style};
use coroner_symbols::{Options, Symbolizer};

use crate::Format;
use crate::failure::Failure;
use crate::filter::Filter;
use crate::reports::{self, Texts, Watch};
use crate::summary::{State, Summary};
use crate::terminal::{self, Output, cut};

/// Lists the reports of the store or folder at `path` that the filter lets through.
pub(crate) fn run(path: &Path, texts: Texts, format: Format, filter: &Filter) -> Result<(), Failure> {
    let mut list = reports::at(path, texts, Some(&mut names()))?;
    let all = list.len();
    filter.apply(&mut list);
    print(&list, all, path, format)
}

/// How often the store is looked at. Where that takes long, less often, so that it is no tenth of the time.
const INTERVAL: Duration = Duration::from_millis(500);

/// Lists the reports that are there, and each that comes, until the process is ended or nobody reads any more. Each is one write, so that no line
/// is cut off by that.
pub(crate) fn watch(path: &Path, texts: Texts, format: Format, filter: &Filter) -> Result<(), Failure> {
    let mut watch = Watch::new(path, texts);
    let mut names = names();
    loop {
        let began = Instant::now();
        let mut new = watch.look(&mut names)?;
        filter.apply(&mut new);
        for summary in &new {
            let mut line = Vec::new();
            match format {
                Format::Json => {
                    serde_json::to_writer(&mut line, summary)?;
                    line.push(b'\n');
                }
                Format::Text => write_summary(summary, &Columns::watched(), &mut line)?,
            }
            let mut out = anstream::AutoStream::auto(std::io::stdout());
            out.write_all(&line)?;
            out.flush()?;
        }
        std::thread::sleep(INTERVAL.max(began.elapsed() * 10));
    }
}

/// Names from where `coroner show` has them, without lines, which take long.
pub(crate) fn names() -> Symbolizer {
    Symbolizer::new(Options { debug_info: false, ..Options::default() })
}

fn print(list: &[Summary], all: usize, path: &Path, format: Format) -> Result<(), Failure> {
    if format == Format::Json {
        let mut out = std::io::BufWriter::new(std::io::stdout().lock());
        serde_json::to_writer_pretty(&mut out, list)?;
        return Ok(writeln!(out).and_then(|()| out.flush())?);
    }
    if list.is_empty() {
        let none = if all > 0 { format!("none of {all} reports is so") } else { "no reports".to_owned() };
        anstream::eprintln!("{none} in `{}`", path.display());
        return Ok(());
    }
    let mut out = std::io::BufWriter::new(Output::paged());
    let columns = Columns::of(list);
    for summary in list {
        write_summary(summary, &columns, &mut out)?;
    }
    Ok(out.flush()?)
}

/// How much room a line has.
struct Columns {
    width: Option<usize>,
    /// Digits of an event id.
    digits: usize,
}

impl Columns {
    /// A terminal has room for as much of an id as tells them apart; programs get all of it.
    fn of(list: &[Summary]) -> Columns {
        let width = terminal::width().filter(|_| terminal::is_terminal());
        Columns { width, digits: if width.is_some() { distinct_digits(list) } else { 32 } }
    }

    /// Of reports that are not known yet.
    fn watched() -> Columns {
        let width = terminal::width().filter(|_| terminal::is_terminal());
        Columns { width, digits: if width.is_some() { 12 } else { 32 } }
    }
}

fn write_summary(summary: &Summary, columns: &Columns, out: &mut impl Write) -> Result<(), Failure> {
    let bold = Style::new().bold();
    let dim = Style::new().dimmed();
    let colour = |colour: AnsiColor| Style::new().fg_color(Some(colour.into()));
    let Columns { width, digits } = *columns;
    let Summary { event_id, app, version, state, .. } = summary;
    // To the second; the rest is for programs.
    let time = summary.time.to_string();
    let time = time.split('.').next().unwrap_or_default().trim_end_matches('Z').replace('T', " ");
    let id = event_id.get(..digits).unwrap_or(event_id);
    let app = if version.is_empty() { app.clone() } else { format!("{app} {version}") };
    let app = cut(&app, width.map(|width| width / 4));
    let note = match state {
        State::Stored => "",
        State::Pending => "  waits for the app's next launch",
        State::Broken(_) => "  broken",
    };
    let before = time.len() + 2 + id.len() + 2 + app.chars().count() + 2;
    let title = cut(&summary.title(), width.map(|width| width.saturating_sub(before + note.chars().count()).max(16)));
    write!(out, "{dim}{time}{dim:#}  {id:digits$}  {bold}{app}{bold:#}  {title}")?;
    match state {
        State::Stored => {}
        State::Pending => write!(out, "{0}{note}{0:#}", colour(AnsiColor::Yellow))?,
        State::Broken(why) => {
            let why = cut(why, width.map(|width| width.saturating_sub(4)));
            let red = colour(AnsiColor::Red);
            write!(out, "{red}{note}{red:#}\n    {red}{why}{red:#}\n    {}", summary.path)?;
        }
    }
    Ok(writeln!(out)?)
}

/// How many digits of ids tell all of them apart, at least 8.
fn distinct_digits(list: &[Summary]) -> usize {
    let mut ids: Vec<&str> = list.iter().map(|summary| summary.event_id.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    let common = |a: &str, b: &str| a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    let most = ids.windows(2).map(|pair| common(pair[0], pair[1]) + 1).max().unwrap_or(0);
    most.clamp(8, 32)
}
