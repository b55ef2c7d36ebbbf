//! `coroner convert`.

use std::path::Path;

use clap::ValueEnum;
use coroner::Report;
use coroner::sentry::envelope::Envelope;
use coroner::sentry::event::{Event, EventOptions};
use coroner::sentry::minidump_attachment;

use crate::failure::Failure;
use crate::symbol_search::SymbolArguments;
use crate::{atomic_file, report_lookup, report_reader, terminal};

/// A format to convert a report to.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// Sentry event (JSON)
    Sentry,
    /// Sentry envelope with that event, as it would be sent
    SentryEnvelope,
    /// Minidump with the report's registers, stack memory and images
    Minidump,
}

impl Form {
    fn convert(self, report: &Report) -> Result<Vec<u8>, Failure> {
        let event = || Event::from_report(report, &EventOptions::default());
        match self {
            Self::Sentry => {
                let mut json = event().to_json();
                json.push(b'\n');
                Ok(json)
            }
            Self::SentryEnvelope => Ok(Envelope::from_event(&event()).to_bytes()),
            Self::Minidump => minidump_attachment(report, &EventOptions::default())
                .map(|minidump| minidump.buffer)
                .map_err(|error| Failure::new(error.to_string())),
        }
    }
}

/// Converts the report that `what` names, and writes it to `output` or to standard output.
///
/// Binary output is not written to a terminal.
pub(crate) fn run(
    what: Option<&str>,
    form: Form,
    output: Option<&Path>,
    store: Option<&Path>,
    symbols: &SymbolArguments,
) -> Result<(), Failure> {
    if form == Form::Minidump && output.is_none() && terminal::is_terminal() {
        return Err(Failure::new("can't write a minidump to a terminal: it is binary")
            .advice("name a file with `--output FILE`, or redirect the output"));
    }
    let mut symbols = symbols.symbolizer_for(what)?;
    let mut report = report_lookup::open_one(what, store, report_reader::Texts::Scrubbed, Some(&mut symbols))?;
    let code = coroner_explain::ImageFiles::for_report(&report, &mut symbols);
    report.explanation = Some(coroner_explain::explain(&report, &code));
    let converted = form.convert(&report)?;
    if let Some(path) = output {
        return atomic_file::write(path, &converted);
    }
    Ok(terminal::print(&converted, true)?)
}
