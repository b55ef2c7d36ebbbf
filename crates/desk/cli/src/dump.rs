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

/// The arguments of `coroner dump`.
#[derive(clap::Args)]
pub(crate) struct DumpArguments {
    /// Process ID
    #[arg(required_unless_present = "core", conflicts_with = "core")]
    pid: Option<u32>,
    /// Read this core dump, compressed or not, instead of a process
    #[arg(long, value_name = "FILE")]
    core: Option<PathBuf>,
    /// Also write a minidump to FILE
    #[arg(long, value_name = "FILE")]
    minidump: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t = ReportFormat::Text)]
    format: ReportFormat,
    /// Write the report to FILE instead of standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Threads to show: a number, `crashed` (here: the main thread) or `all`
    #[arg(long, default_value = "all", value_name = "N|crashed|all")]
    thread: ThreadFilter,
    /// Don't fold runtime functions and recursion
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
        (None, None) => return Err(Failure::new("missing process ID or core dump")),
    };
    if let Some(path) = &arguments.minidump {
        // The writer waits without a limit for a thread that hangs in the kernel.
        let is_stoppable = report.threads.iter().all(|thread| thread.not_captured.is_none());
        let minidump = match arguments.pid.filter(|_| is_stoppable) {
            Some(pid) => coroner_inspect::write_minidump(pid)?,
            None => {
                let created = minidump_attachment(&report, &EventOptions::default());
                created.map_err(|error| Failure::new(format!("can't create a minidump: {error}")))?.buffer
            }
        };
        atomic_file::write(path, &minidump)?;
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
    match foreign_reports::dump_form(path) {
        Some(Form::Core | Form::Compressed | Form::Apport) => foreign_reports::read_dump_with(path, symbolizer),
        // If there is no file, report that instead of the format.
        _ if !path.is_file() => Err(Failure::new(format!("can't read `{}`: no such file", path.display()))),
        _ => Err(Failure::new(format!("`{}` is not a core dump", path.display()))
            .advice("to view a report or minidump, use `coroner show FILE`")),
    }
}
