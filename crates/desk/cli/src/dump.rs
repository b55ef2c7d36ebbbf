//! `coroner dump`: reports a running or hung process from outside, or a core dump.

use std::path::{Path, PathBuf};

use anstyle::Style;
use coroner::Report;
use coroner::sentry::event::EventOptions;
use coroner::sentry::minidump_attachment;
use coroner_formats::dump::Form;
use coroner_report::text::ThreadFilter;
use coroner_symbols::Symbolizer;

use crate::failure::Failure;
use crate::report_reader::Texts;
use crate::store_location::REPORTS;
use crate::symbol_search::SymbolArguments;
use crate::{ReportFormat, atomic_file, foreign_reports, progress, report_files, show, store_location};

/// What a person gives.
#[derive(clap::Args)]
pub(crate) struct DumpArguments {
    /// The process
    #[arg(required_unless_present = "core", conflicts_with = "core")]
    pid: Option<u32>,
    /// Read this core dump, compressed or not, instead of a process
    #[arg(long, value_name = "FILE")]
    core: Option<PathBuf>,
    /// Write a minidump of it to this file, too
    #[arg(long, value_name = "FILE")]
    minidump: Option<PathBuf>,
    /// How to print the report
    #[arg(long, value_enum, default_value_t = ReportFormat::Text)]
    format: ReportFormat,
    /// Write the report to this file instead of standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Which threads to show: a number, `crashed` (the first one, here) or `all`
    #[arg(long, default_value = "all", value_name = "N|crashed|all")]
    thread: ThreadFilter,
    /// Show each frame: without it, one line stands for several functions of a runtime, and for the rounds of a recursion after the second
    #[arg(long)]
    all_frames: bool,
    #[command(flatten)]
    symbols: SymbolArguments,
}

/// Reads the process or the core dump, shows its report, and keeps the report in the store, if any.
pub(crate) fn run(arguments: &DumpArguments, store: Option<&Path>) -> Result<(), Failure> {
    let mut symbolizer = arguments.symbols.symbolizer()?;
    let mut report = match (arguments.pid, &arguments.core) {
        (Some(pid), _) => {
            let progress = progress::spinner("reading the process, walking its stacks");
            let read = coroner_inspect::read_process(pid, &mut symbolizer);
            progress.finish_and_clear();
            read?
        }
        (None, Some(core)) => read_core(core, &mut symbolizer)?,
        (None, None) => return Err(Failure::new("neither a process nor a core dump is named")),
    };
    if let Some(path) = &arguments.minidump {
        let minidump = minidump_attachment(&report, &EventOptions::default())
            .map_err(|error| Failure::new(format!("can't make a minidump: {error}")))?;
        atomic_file::write(path, &minidump.bytes)?;
    }
    // Stack memory may contain user input, and is requested only with the minidump.
    report.stack_memory.clear();
    let mut kept = Ok(());
    if let Some(store) = store {
        let folder = store.join(REPORTS);
        kept = report_files::keep(&report, &folder);
        if kept.is_ok() {
            let dimmed = Style::new().dimmed();
            let id = report.header.event_id.to_string();
            let show = format!("coroner show {}{}", &id[..8], store_location::store_option(store));
            anstream::eprintln!("{dimmed}stored in {}: {show}{dimmed:#}", folder.display());
        }
    }
    let view = show::View {
        format: arguments.format,
        threads: arguments.thread,
        texts: Texts::Scrubbed,
        all_frames: arguments.all_frames,
        output: arguments.output.as_deref(),
    };
    // A report that can't be stored is still shown.
    show::present(report, &mut symbolizer, &view).and(kept)
}

fn read_core(path: &Path, symbolizer: &mut Symbolizer) -> Result<Report, Failure> {
    match foreign_reports::form_of(path) {
        Some(Form::Core | Form::Compressed | Form::Apport) => foreign_reports::read_dump_with(path, symbolizer),
        // If there is no file, report that instead of the format.
        _ if !path.is_file() => Err(Failure::new(format!("there is no core dump at `{}`", path.display()))),
        _ => Err(Failure::new(format!("`{}` is no core dump", path.display()))
            .advice("`coroner show FILE` shows reports and minidumps")),
    }
}
