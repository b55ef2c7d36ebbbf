//! `coroner list`.

use std::io::Write;
use std::path::Path;

use anstyle::{AnsiColor, Style};
use coroner_symbols::{Options, Symbolizer};

use crate::Format;
use crate::failure::Failure;
use crate::filter::Filter;
use crate::reports::{self, Texts};
use crate::summary::{State, Summary};
use crate::terminal::{self, Output, cut};

/// Lists the reports of the store or folder at `path` that the filter lets through.
pub(crate) fn run(path: &Path, texts: Texts, format: Format, filter: &Filter) -> Result<(), Failure> {
    let mut list = reports::at(path, texts, Some(&mut names()))?;
    let all = list.len();
    filter.apply(&mut list);
    print(&list, all, path, format)
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
    let width = terminal::width().filter(|_| terminal::is_terminal());
    let bold = Style::new().bold();
    let dim = Style::new().dimmed();
    let colour = |colour: AnsiColor| Style::new().fg_color(Some(colour.into()));
    // A terminal has room for as much of an id as tells them apart; programs get all of it.
    let digits = if width.is_some() { distinct_digits(list) } else { 32 };
    for summary in list {
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
        let title =
            cut(&summary.title(), width.map(|width| width.saturating_sub(before + note.chars().count()).max(16)));
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
        writeln!(out)?;
    }
    Ok(out.flush()?)
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
