//! Reads reports in all file formats, with names found earlier, and a store's runs.

use std::path::Path;

use coroner::{ReadError, Report};
use coroner_symbols::Symbolizer;

use crate::bounded_read::read;
use crate::failure::{Context, Failure};
use crate::kept_names::{self, NameCount};
use crate::report_files::{self, StoredReport};
use crate::{foreign_reports, outboxes, progress};

/// The UTF-8 byte order mark, which some programs write.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Whether a report's strings are scrubbed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Texts {
    /// Obvious secrets are hidden, by the rules of delivery.
    ///
    /// In a delivered report, only those that were hidden at delivery are.
    Scrubbed,
    /// Strings are unchanged, as the app wrote them.
    AsTheyWere,
}

impl Texts {
    pub(crate) fn apply(self, report: &mut Report) {
        if self == Self::Scrubbed {
            report.scrub(&coroner::hide_secrets);
        }
    }
}

/// Opens the report file at `path`, in any format, with only the names that it contains.
pub(crate) fn open_as_it_is(path: &Path, texts: Texts) -> Result<Report, Failure> {
    let mut report = read_report(path, None)?.0;
    texts.apply(&mut report);
    Ok(report)
}

/// Returns the report in a file, and whether the file is JSON.
///
/// A dump's stacks are walked with the files of `symbols`, too.
fn read_report(path: &Path, symbols: Option<&mut Symbolizer>) -> Result<(Report, bool), Failure> {
    if foreign_reports::dump_form(path).is_some() {
        return Ok((foreign_reports::read_dump(path, symbols)?, false));
    }
    if let Some(failure) = outboxes::refuse(path) {
        return Err(failure);
    }
    let bytes = read(path)?;
    let is_json = is_json(&bytes);
    let mut report = if is_json { read_json(path, &bytes)? } else { read_any(path, &bytes)? };
    coroner::complete_report(&mut report);
    Ok((report, is_json))
}

/// Opens the report file at `path`, in any format, with names.
///
/// With `symbols`, names are looked up and then kept in the JSON. Other names come from the crash
/// itself, or were found earlier and are in the JSON.
pub(crate) fn open_file(path: &Path, texts: Texts, mut symbols: Option<&mut Symbolizer>) -> Result<Report, Failure> {
    let (mut report, is_json) = read_report(path, symbols.as_deref_mut())?;
    let json = match is_json {
        true => Some(path.to_owned()),
        false => {
            let json = path.with_extension(report_files::JSON);
            let named =
                if json == path { None } else { read(&json).ok().and_then(|bytes| read_json(&json, &bytes).ok()) };
            // Ignore the names of another report, or of none.
            let named = named.filter(|named| named.header.event_id == report.header.event_id);
            if let Some(named) = &named {
                report.take_names(named);
            }
            named.map(|_| json)
        }
    };
    texts.apply(&mut report);
    if let Some(symbols) = symbols {
        let before = NameCount::new(&report);
        name_frames(&mut report, symbols);
        if let Some(json) = json.filter(|_| NameCount::new(&report) > before) {
            // A report that can't be written is still shown.
            let _ = kept_names::keep(&json, &report);
        }
    }
    Ok(report)
}

/// Opens a report in a folder: as it was delivered, if the JSON contains that.
pub(crate) fn open_stored(
    stored: &StoredReport,
    texts: Texts,
    mut symbols: Option<&mut Symbolizer>,
) -> Result<Report, Failure> {
    match (texts, stored.json(), stored.raw()) {
        (Texts::Scrubbed, Some(json), Some(raw)) => {
            open_file(&json, texts, symbols.as_deref_mut()).or_else(|_| open_file(&raw, texts, symbols))
        }
        _ => open_file(&stored.path(), texts, symbols),
    }
}

/// Whether the content is JSON of any kind: a file's name is unreliable once it was mailed.
fn is_json(bytes: &[u8]) -> bool {
    let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
    // Apple's `.ips` is a line of JSON followed by more.
    let is_one_line = bytes.trim_ascii().iter().all(|byte| *byte != b'\n');
    if (!is_one_line && coroner_formats::apple_report::AppleReport::is_likely(bytes))
        || coroner_formats::swift_crash_log::is_swift_crash_log(bytes)
        || coroner::is_metric_kit(bytes)
    {
        return false;
    }
    bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{')
}

/// Reads the JSON form of a report.
fn read_json(path: &Path, bytes: &[u8]) -> Result<Report, Failure> {
    let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
    let doing = || format!("can't read `{}` as a Coroner report in JSON", path.display());
    let json = std::str::from_utf8(bytes).context(doing())?;
    Report::from_json(json).context(doing())
}

/// Reads a Coroner report or another system's crash report, recognized by its content.
fn read_any(path: &Path, bytes: &[u8]) -> Result<Report, Failure> {
    let doing = || format!("can't read `{}`", path.display());
    match Report::read(bytes) {
        Err(error @ ReadError::NotAReport { .. }) => match foreign_reports::read(bytes) {
            None => match foreign_reports::describe(bytes) {
                Some(what) => Err(Failure::new(format!("{}: not a report, but {what}", doing()))),
                None => Err(error).context(doing()),
            },
            Some(read) => read.map_err(|why| Failure::new(format!("{}: {why}", doing()))),
        },
        read => read.context(doing()),
    }
}

/// Looks up function names, files and lines.
pub(crate) fn name_frames(report: &mut Report, symbols: &mut Symbolizer) {
    let progress = progress::spinner("looking up function names");
    symbols.symbolicate_report(report);
    progress.finish_and_clear();
}

/// Opens the reports in a run's directory, the first one first.
pub(crate) fn open_run(
    directory: &Path,
    texts: Texts,
    symbols: Option<&mut Symbolizer>,
) -> Result<Vec<Report>, Failure> {
    let raw = coroner::RawRun::read(directory)?;
    let mut reports = raw.parse().context(format!("can't read the run in `{}`", directory.display()))?;
    reports.iter_mut().for_each(|report| texts.apply(report));
    if let Some(symbols) = symbols {
        for report in &mut reports {
            name_frames(report, symbols);
        }
    }
    Ok(reports)
}
