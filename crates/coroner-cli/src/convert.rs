//! `coroner convert`.

use std::io::Write;
use std::path::Path;

use clap::ValueEnum;
use coroner::Report;
use coroner::sentry::envelope::Envelope;
use coroner::sentry::event::{Event, EventOptions};
use coroner::sentry::minidump_attachment;

use crate::failure::Failure;
use crate::reports;
use crate::symbol_search::SymbolArguments;

/// What a report is converted to.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// An event of Sentry's protocol, as JSON
    Sentry,
    /// That event in an envelope, as it would be sent
    SentryEnvelope,
    /// A minidump, with what the report has: registers of all threads, the crashed one's stack, images
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
            Self::SentryEnvelope => Ok(Envelope::of_event(&event()).to_bytes()),
            Self::Minidump => minidump_attachment(report, &EventOptions::default())
                .map(|minidump| minidump.bytes)
                .map_err(|error| Failure::new(error.to_string())),
        }
    }
}

pub(crate) fn run(what: &str, form: Form, store: Option<&Path>, symbols: &SymbolArguments) -> Result<(), Failure> {
    let symbols = symbols.search()?;
    // A minidump has no names in it.
    let symbols = (form != Form::Minidump).then_some(&symbols);
    let report = reports::open_one(what, store, reports::Texts::Scrubbed, symbols)?;
    let converted = form.convert(&report)?;
    let mut out = std::io::stdout().lock();
    out.write_all(&converted)?;
    Ok(out.flush()?)
}
