//! `coroner list`.

use std::io::Write;
use std::path::Path;

use anstyle::{AnsiColor, Style};
use coroner_symbols::{Options, Symbolizer};

use crate::Format;
use crate::failure::Failure;
use crate::reports::{self, Texts};
use crate::summary::{State, Summary};

pub(crate) fn store(path: &Path, texts: Texts, format: Format) -> Result<(), Failure> {
    print(&reports::in_store(path, texts, Some(&mut names()))?, path, format)
}

pub(crate) fn folder(path: &Path, texts: Texts, format: Format) -> Result<(), Failure> {
    print(&reports::in_folder(path, texts, Some(&mut names()))?, path, format)
}

/// Names from where `coroner show` has them, without lines, which take long.
fn names() -> Symbolizer {
    Symbolizer::new(Options { debug_info: false, ..Options::default() })
}

fn print(list: &[Summary], path: &Path, format: Format) -> Result<(), Failure> {
    let mut out = anstream::stdout().lock();
    if format == Format::Json {
        writeln!(out, "{}", serde_json::to_string_pretty(list)?)?;
        return Ok(());
    }
    if list.is_empty() {
        anstream::eprintln!("no reports in `{}`", path.display());
        return Ok(());
    }
    let bold = Style::new().bold();
    let dim = Style::new().dimmed();
    let colour = |colour: AnsiColor| Style::new().fg_color(Some(colour.into()));
    for summary in list {
        let Summary { event_id, time, app, version, what, function, path, state } = summary;
        let function = function.as_ref().map(|function| format!(" in {function}")).unwrap_or_default();
        // To the second; the rest is for programs.
        let time = time.split('.').next().unwrap_or_default().trim_end_matches('Z').replace('T', " ");
        writeln!(out, "{dim}{time} UTC{dim:#}  {bold}{app}{bold:#} {version}  {what}{function}")?;
        let note = match state {
            State::Stored => String::new(),
            State::Pending => {
                let yellow = colour(AnsiColor::Yellow);
                format!("  {yellow}waits for the app's next launch{yellow:#}")
            }
            State::Broken(why) => {
                let red = colour(AnsiColor::Red);
                format!("  {red}broken: {why}{red:#}")
            }
        };
        writeln!(out, "  {event_id}{note}\n  {dim}{path}{dim:#}")?;
    }
    Ok(())
}
