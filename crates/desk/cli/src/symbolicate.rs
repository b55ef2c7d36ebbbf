//! `coroner symbolicate`: names the frames of a Coroner report or an Apple crash report.

use std::path::Path;
use std::process::ExitCode;

use coroner::Report;
use coroner_formats::apple_report::{AppleImage, AppleReport};
use coroner_report::text::ThreadFilter;
use coroner_report::wire::FILE_PREFIX;
use coroner_symbols::ImageKey;

use crate::Format;
use crate::failure::{Context, Failure};
use crate::show::Layout;
use crate::symbol_search::{self, Naming, SymbolArguments};
use crate::{atomic_file, bounded_read, report_lookup, report_reader, show, terminal};

/// Maximum size of a report in bytes; Apple's largest have a few megabytes.
const MAX_SIZE: u64 = 256 << 20;

pub(crate) struct Output<'a> {
    /// The output file; `None` for standard output.
    pub(crate) path: Option<&'a Path>,
    pub(crate) format: Option<Format>,
    pub(crate) threads: ThreadFilter,
}

impl Output<'_> {
    fn write(&self, bytes: &[u8]) -> Result<(), Failure> {
        match self.path {
            Some(path) => atomic_file::write(path, bytes),
            None => Ok(terminal::print(bytes, bytes.starts_with(b"{"))?),
        }
    }
}

/// Symbolicates the report that `what` names: a path, or an event id's prefix in `store`.
pub(crate) fn run(
    what: Option<&str>,
    symbols: &SymbolArguments,
    store: Option<&Path>,
    output: &Output<'_>,
) -> Result<ExitCode, Failure> {
    let apple = what.map_or(Ok(None), |what| Ok::<_, Failure>(apple(Path::new(what))?.map(|bytes| (what, bytes))))?;
    let named = match apple {
        Some((what, bytes)) => name_apple(what, &bytes, symbols, output)?,
        None => {
            // Use only these symbols, not names that were found earlier.
            let own = match what.map(Path::new).filter(|path| path.is_file()) {
                Some(path) => report_reader::open_as_it_is(path, report_reader::Texts::Scrubbed)?,
                None => report_lookup::open_one(what, store, report_reader::Texts::Scrubbed, None)?,
            };
            name_own(own, symbols, output)?
        }
    };
    Ok(if named { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the bytes of an Apple crash report; `None` for other files.
pub(crate) fn apple(path: &Path) -> Result<Option<Vec<u8>>, Failure> {
    let failed = || format!("can't read `{}`", path.display());
    if !path.is_file() || std::fs::metadata(path).context(failed())?.len() > MAX_SIZE {
        return Ok(None);
    }
    let bytes = bounded_read::read_bounded(path).context(failed())?;
    Ok((!bytes.starts_with(&FILE_PREFIX) && AppleReport::is_likely(&bytes)).then_some(bytes))
}

fn name_apple(what: &str, bytes: &[u8], symbols: &SymbolArguments, output: &Output<'_>) -> Result<bool, Failure> {
    let report = AppleReport::read(bytes).context(format!("can't read `{what}`"))?;
    if output.format.is_some() {
        return Err(Failure::new(format!("can't convert `{what}`: {} keeps its format", report.form()))
            .advice("omit `--format`"));
    }
    let mut symbolizer = symbols.symbolizer()?;
    let naming = Naming::begin();
    let named = report.symbolicate(&mut symbolizer, &mut |image, frames| naming.set_image(image, frames));
    drop(naming);
    output.write(&named.bytes)?;
    let keys: Vec<ImageKey> = report.images().iter().map(AppleImage::key).collect();
    Ok(symbol_search::print_result(&mut symbolizer, &named.images, None) & symbols.match_images(&keys))
}

fn name_own(mut report: Report, symbols: &SymbolArguments, output: &Output<'_>) -> Result<bool, Failure> {
    let mut symbolizer = symbols.symbolizer()?;
    let naming = Naming::begin();
    let images = symbolizer.symbolicate_report_with(&mut report, &mut |image, frames| naming.set_image(image, frames));
    drop(naming);
    let code = coroner_explain::ImageFiles::for_report(&report, &mut symbolizer);
    let explanation = Some(coroner_explain::explain(&report, &code));
    match (output.format, output.path) {
        (Some(Format::Json), _) => {
            show::keep_thread(&mut report, output.threads)?;
            output.write(format!("{}\n", report.to_json()).as_bytes())?;
        }
        (_, Some(path)) => {
            let mut text = anstream::StripStream::new(Vec::new());
            show::print(
                &report,
                explanation.as_ref(),
                output.threads,
                Layout { all_frames: true, ..Layout::default() },
                &mut text,
            )?;
            atomic_file::write(path, &text.into_inner())?;
        }
        (_, None) => {
            show::print(
                &report,
                explanation.as_ref(),
                output.threads,
                Layout::for_terminal(),
                &mut terminal::standard_output(),
            )?;
        }
    }
    let program = report.images.iter().find(|image| image.is_main).map(|image| Path::new(&image.path));
    let named = symbol_search::print_result(&mut symbolizer, &images, program);
    Ok(named & symbols.match_images(&symbol_search::image_keys(&report)))
}
