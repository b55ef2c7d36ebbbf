//! `coroner symbols`: shows which symbols a file contains, and whether it matches a report.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use coroner_formats::apple_report::AppleReport;
use coroner_symbols::{ImageKey, SymbolFile};
use serde::Serialize;

use crate::Format;
use crate::failure::{Context, Failure};
use crate::symbol_search::{image_keys, stem, symbol_files};
use crate::{progress, report_lookup, report_reader, symbolicate, terminal};

/// The symbols in a file, or in one of its architectures.
#[derive(Serialize)]
struct Description {
    path: String,
    format: String,
    arch: String,
    /// GNU build id or `LC_UUID`.
    debug_id: Option<String>,
    /// The id in the form of breakpad's symbol servers.
    breakpad_id: Option<String>,
    /// The address of the image's first byte, in the file's own addresses.
    base_address: String,
    /// The number of symbols by source.
    symbols: BTreeMap<String, usize>,
    /// Whether it has files, lines and inlined calls.
    has_lines: bool,
    problems: Vec<String>,
    /// With `--report`: the report's images that match the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    images: Option<Vec<Relation>>,
}

/// A report's image and its relation to the file.
#[derive(Serialize)]
struct Relation {
    path: String,
    debug_id: Option<String>,
    /// Whether the ids are equal; if not, only the names are.
    matches: bool,
}

/// Describes files.
///
/// # Errors
/// An error if files can't be read, after the others were described; with a report, also if no file
/// matches an image.
pub(crate) fn run(
    paths: &[PathBuf],
    report: Option<&str>,
    store: Option<&Path>,
    format: Format,
) -> Result<ExitCode, Failure> {
    let images = report.map(|what| images(what, store)).transpose()?;
    let (mut descriptions, mut failures) = (Vec::new(), Vec::new());
    for found in paths.iter().map(|path| symbol_files(path)) {
        let progress = progress::spinner("reading symbols");
        match found {
            Ok(files) => files.iter().for_each(|file| match SymbolFile::open(file) {
                Ok(parts) => descriptions.extend(parts.iter().map(|part| describe(part, images.as_deref()))),
                Err(error) => failures.push(Failure::from(error)),
            }),
            Err(failure) => failures.push(failure),
        }
        progress.finish_and_clear();
    }
    let mut out = terminal::standard_output();
    match format {
        // If all files failed, print only the error, not an empty list.
        Format::Json if descriptions.is_empty() && !failures.is_empty() => {}
        Format::Json => writeln!(out, "{}", serde_json::to_string_pretty(&descriptions)?)?,
        Format::Text => descriptions.iter().try_for_each(|description| print(description, &mut out))?,
    }
    failures.iter().for_each(Failure::print);
    let related = descriptions.iter().flat_map(|description| description.images.iter().flatten());
    let is_of_report = images.is_none() || related.into_iter().any(|relation| relation.matches);
    Ok(if is_of_report && failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the images of a Coroner report or an Apple crash report.
fn images(what: &str, store: Option<&Path>) -> Result<Vec<ImageKey>, Failure> {
    if let Some(bytes) = symbolicate::apple(Path::new(what))? {
        let report = AppleReport::read(&bytes).context(format!("can't read `{what}`"))?;
        return Ok(report.images().iter().map(coroner_formats::apple_report::AppleImage::key).collect());
    }
    let report = report_lookup::open_one(Some(what), store, report_reader::Texts::Scrubbed, None)?;
    Ok(image_keys(&report))
}

fn describe(file: &SymbolFile, images: Option<&[ImageKey]>) -> Description {
    let symbols = file.sources().into_iter().map(|(source, count)| (source.to_string(), count)).collect();
    let has_lines = file.has_lines();
    Description {
        path: file.path().display().to_string(),
        format: file.kind().to_string(),
        arch: file.arch().to_string(),
        debug_id: file.debug_id().map(ToString::to_string),
        breakpad_id: file.breakpad_debug_id(),
        base_address: format!("{:#x}", file.base_svma()),
        symbols,
        has_lines,
        problems: file.take_problems().iter().map(ToString::to_string).collect(),
        images: images.map(|images| relations(file, images)),
    }
}

/// Returns the images that match the file, or else those with its name.
fn relations(file: &SymbolFile, images: &[ImageKey]) -> Vec<Relation> {
    let relation = |image: &ImageKey, matches| Relation {
        path: image.path.display().to_string(),
        debug_id: image.debug_id.as_ref().map(ToString::to_string),
        matches,
    };
    let own: Vec<Relation> =
        images.iter().filter(|image| file.matches(image)).map(|image| relation(image, true)).collect();
    if !own.is_empty() {
        return own;
    }
    let same_name = images.iter().filter(|image| stem(&image.path) == stem(file.path()));
    same_name.map(|image| relation(image, false)).collect()
}

fn print(description: &Description, out: &mut impl Write) -> Result<(), Failure> {
    let bold = Style::new().bold();
    let dim = Style::new().dimmed();
    writeln!(out, "{bold}{}{bold:#}", description.path)?;
    let mut field = |name: &str, value: &str| writeln!(out, "  {dim}{name:<9}{dim:#} {value}");
    field("format", &format!("{}, {}", description.format, description.arch))?;
    field("debug id", description.debug_id.as_deref().unwrap_or("none"))?;
    if let Some(id) = &description.breakpad_id {
        field("breakpad", id)?;
    }
    field("base", &description.base_address)?;
    let counts: Vec<String> = description.symbols.iter().map(|(source, count)| format!("{count} {source}")).collect();
    field("symbols", &if counts.is_empty() { "none".to_owned() } else { counts.join(", ") })?;
    field("lines", if description.has_lines { "yes, with inlined calls" } else { "none" })?;
    for problem in &description.problems {
        field("problem", problem)?;
    }
    let Some(images) = &description.images else { return Ok(()) };
    let green = Style::new().fg_color(Some(AnsiColor::Green.into()));
    let red = Style::new().fg_color(Some(AnsiColor::Red.into()));
    if images.is_empty() {
        field("report", &format!("{red}no matching image{red:#}"))?;
    }
    for image in images {
        let id = image.debug_id.as_deref().unwrap_or("none");
        let text = if image.matches {
            format!("{green}matches{green:#} {}", image.path)
        } else {
            format!("{red}another build{red:#} of {}, whose ID is {id}", image.path)
        };
        field("report", &text)?;
    }
    Ok(())
}
