//! The `coroner` command.
//!
//! There is a file for each command; this one has the command line and the exit status: 0 success,
//! 1 failure, 2 invalid usage.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ColorChoice, Parser, Subcommand, ValueEnum};
use coroner_report::text::ThreadFilter;

mod atomic_file;
mod bounded_read;
#[cfg(target_os = "linux")]
mod collect;
mod convert;
mod demo;
mod doctor;
#[cfg(target_os = "linux")]
mod dump;
mod explanation_text;
mod failure;
mod filter;
mod foreign_reports;
mod group;
mod import;
mod kept_names;
mod list;
mod list_index;
mod listing;
mod manual;
mod markdown;
mod outboxes;
mod page;
mod progress;
mod report_files;
mod report_lookup;
mod report_reader;
#[cfg(target_os = "linux")]
mod run;
mod send;
mod show;
mod store_contents;
mod store_location;
mod summary;
mod symbol_search;
mod symbolicate;
mod symbols;
mod terminal;
mod watch;

use failure::Failure;
use report_reader::Texts;
use store_location::StoreArgument;
use symbol_search::{ListSymbols, SymbolArguments};

/// The last line of each command's help.
const EXIT_STATUS: &str = "Exit status: 0 success, 1 failure, 2 invalid usage.";

/// Inspect, symbolicate, group and send crash reports.
#[derive(Parser)]
#[command(name = "coroner", version, after_help = EXIT_STATUS, max_term_width = 120)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Use colors; `auto` means on a terminal
    #[arg(long, global = true, value_enum, default_value_t = ColorChoice::Auto, value_name = "WHEN")]
    color: ColorChoice,
}

#[derive(Subcommand)]
enum Command {
    /// Crash a demo app and show its report
    #[command(after_help = format!("Examples:
  coroner demo                   write to a null pointer
  coroner demo stack-overflow    crash in another way
  coroner demo --list            list all faults

{EXIT_STATUS}"))]
    Demo {
        /// Name of the fault; see --list
        #[arg(default_value = "null-store", value_parser = demo::fault)]
        fault: &'static coroner_faults::Fault,
        /// List the faults
        #[arg(long)]
        list: bool,
        /// Threads to show: a number, `crashed` or `all`
        #[arg(long, default_value = "crashed", value_name = "N|crashed|all")]
        thread: ThreadFilter,
        #[command(flatten)]
        store: StoreArgument,
    },
    /// Run a program and explain its crash
    #[cfg(target_os = "linux")]
    #[command(after_help = "Examples:
  coroner run -- ./paint picture.png
  coroner run --symbols build/symbols -- python3 script.py
  coroner run --only paint -- ./start-everything.sh
  coroner run --otlp http://collector:4318 -- paint-server

The program runs unmodified under a tracer (ptrace), as do the processes that it starts, also as daemons. If one of them crashes, the explained report \
is printed to standard error, stored and, with --dsn or --otlp, sent. Traced programs can't be debugged; gdb, strace and programs with LeakSanitizer \
aren't traced. Without the right to trace, the program runs all the same, after a warning.

Exit status: the program's own, or its fatal signal; 125 this command failed, 126 the program can't be run, 127 program not found.")]
    Run {
        #[command(flatten)]
        arguments: run::RunArguments,
        #[command(flatten)]
        store: StoreArgument,
    },
    /// Print the stacks of all threads of a running process
    #[cfg(target_os = "linux")]
    #[command(after_help = format!("Examples:
  coroner dump 4711
  coroner dump $(pidof paint) --minidump paint.dmp
  coroner dump 4711 --format html -o paint.html
  coroner dump --core core.4711        read a core dump instead, compressed or not

The process is stopped (ptrace) for some milliseconds while its registers and stacks are read, and then continues. The report is stored without \
memory contents. A minidump contains the whole stacks, the command line and the environment, which may include sensitive data.

{EXIT_STATUS}"))]
    Dump {
        #[command(flatten)]
        arguments: dump::DumpArguments,
        #[command(flatten)]
        store: StoreArgument,
    },
    /// Capture crashes system-wide, as the core_pattern handler
    #[cfg(target_os = "linux")]
    #[command(after_help = format!("Examples:
  sysctl -w kernel.core_pattern='|/usr/local/bin/coroner collect %P %u %g %t %d'
  sysctl -w kernel.core_pattern='@@/run/coroner.socket' && coroner collect --listen /run/coroner.socket    (Linux 6.17)
  coroner list --store /var/lib/coroner/1000

Each user's reports are written to a directory named after the user ID below --store; those of root and of set-user-ID programs to `0`. The kernel \
starts the handler as root. Before reading any data of the crashed process, the handler switches to the process's user (or to nobody, if that is root), \
drops all capabilities, and limits its own time and memory. Core dumps are not stored.

{EXIT_STATUS}"))]
    Collect {
        #[command(flatten)]
        arguments: collect::CollectArguments,
    },
    /// List the reports in a store or folder, oldest first
    #[command(after_help = format!("Examples:
  coroner list                                     reports of `coroner demo`
  coroner list --store ~/.local/state/paint/coroner
  coroner list /srv/reports                        a folder written by a folder sink
  coroner list --since 7d --signal SIGSEGV --tag country=at
  coroner list --format json | jq '.[].event_id'
  coroner list --watch                             also print new reports, until Ctrl-C

The list is cached in the user's cache directory, so that only new reports are read. Columns are truncated to the terminal's width, or to 400 \
characters without a terminal; JSON is not truncated.

{EXIT_STATUS}"))]
    List {
        /// Store or folder of reports
        folder: Option<PathBuf>,
        /// Output format
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
        /// Don't hide secrets in the app's data
        #[arg(long)]
        unscrubbed: bool,
        /// Keep running and print new reports; as JSON, one object per line
        #[arg(long, conflicts_with = "newest")]
        watch: bool,
        #[command(flatten)]
        symbols: ListSymbols,
        #[command(flatten)]
        filter: filter::Filter,
        #[command(flatten)]
        store: StoreArgument,
    },
    /// Group reports with similar stacks
    #[command(visible_alias = "groups", after_help = format!("Examples:
  coroner group
  coroner group /srv/reports --since 7d
  coroner group --format json | jq '.[0].signature'

See docs/grouping.md for the rules. Lines are truncated to the terminal's width, or to 400 characters without a terminal; JSON is not truncated.

{EXIT_STATUS}"))]
    Group {
        #[command(flatten)]
        arguments: group::GroupArguments,
    },
    /// Show the groups with the most reports
    #[command(after_help = format!("Examples:
  coroner top                   the ten largest groups
  coroner top --count 3 --release paint@1.2.3

{EXIT_STATUS}"))]
    Top {
        #[command(flatten)]
        arguments: group::GroupArguments,
        /// Maximum number of groups
        #[arg(long, default_value = "10")]
        count: std::num::NonZeroUsize,
    },
    /// Show a report
    #[command(after_help = format!("Examples:
  coroner show                                     the newest report
  coroner show 4f1c                                the report whose event ID starts with 4f1c
  coroner show reports/20261121T010203Z-4f1c….json
  coroner show 4f1c --thread all
  coroner show 4f1c --format json | jq .crash
  coroner show report.coroner --symbols build/symbols
  coroner show tombstone_00 --symbols build/symbols   an Android tombstone, log or ANR trace

{EXIT_STATUS}"))]
    Show {
        /// Report file, run directory, or start of an event ID [default: newest in the store]
        ///
        /// Report files are Coroner's (.json, .coroner), core dumps, minidumps, and crash reports
        /// of Apple and Android systems.
        report: Option<String>,
        /// Output format
        #[arg(long, value_enum, default_value_t = ReportFormat::Text)]
        format: ReportFormat,
        /// Same as `--format html`
        #[arg(long, conflicts_with = "format")]
        html: bool,
        /// Write to FILE instead of standard output
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Threads to show: a number, `crashed` or `all`
        #[arg(long, default_value = "crashed", value_name = "N|crashed|all")]
        thread: ThreadFilter,
        /// Don't fold runtime functions and recursion
        #[arg(long)]
        all_frames: bool,
        /// Don't hide secrets in the app's data
        ///
        /// For an event ID, shows the raw report instead of the delivered one.
        #[arg(long)]
        unscrubbed: bool,
        #[command(flatten)]
        symbols: SymbolArguments,
        #[command(flatten)]
        store: StoreArgument,
    },
    /// Open a report in the browser
    #[command(after_help = "Examples:
  coroner open
  coroner open 4f1c

The page is one file that makes no network requests. It is written to $XDG_RUNTIME_DIR/coroner, or to coroner/pages in the user's cache directory, \
and its path is printed. The browser is $BROWSER or the system's default; if it still runs after five seconds, it is assumed to work.

Exit status: 0 success, 1 failure (including a browser that fails), 2 invalid usage.")]
    Open {
        /// Report file, run directory, or start of an event ID [default: newest in the store]
        report: Option<String>,
        #[command(flatten)]
        symbols: SymbolArguments,
        #[command(flatten)]
        store: StoreArgument,
    },
    /// Import core dumps, minidumps, system crash reports and logs
    #[command(after_help = format!("Examples:
  coroner import core.4711
  coroner import upload.dmp --symbols build/symbols
  coroner import tombstone_00 anr_2026 -o reports
  coroner import App-2026-11-21-101112.ips --symbols App.dSYM
  coroner import --log server.log          sanitizers, panics, fatal errors, kernel lines
  journalctl -u shop | coroner import --log -

Stacks are unwound with the programs' own files. These are found by build ID, at their paths, in /usr/lib/debug and in the --symbols folders. \
To view a file without importing it, use `coroner show FILE`.

{EXIT_STATUS}"))]
    Import {
        #[command(flatten)]
        arguments: import::ImportArguments,
        #[command(flatten)]
        store: StoreArgument,
    },
    /// Symbolicate a Coroner or Apple crash report
    #[command(after_help = format!("Examples:
  coroner symbolicate report.coroner --symbols build/symbols
  coroner symbolicate 4f1c --symbols build/symbols --format json | jq .threads
  coroner symbolicate App-2026-11-21.ips --symbols App.dSYM --output named.ips
  coroner symbolicate old.crash --symbols ~/Library/Developer/Xcode/Archives

Apple reports keep their format, with the missing names filled in. A summary, with the reasons for missing names, is printed to standard error.

Exit status: 0 success; 1 failure, including a program without any named frame, and --symbols files of which none matches the report; \
2 invalid usage."))]
    Symbolicate {
        /// Report file (.coroner, .json, .ips, .crash), run directory, or start of an event ID
        /// [default: newest in the store]
        report: Option<String>,
        #[command(flatten)]
        symbols: SymbolArguments,
        /// Write to FILE instead of standard output
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Output format of a Coroner report [default: text]
        #[arg(long, value_enum)]
        format: Option<Format>,
        /// Threads of a Coroner report to show: a number, `crashed` or `all`
        #[arg(long, default_value = "crashed", value_name = "N|crashed|all")]
        thread: ThreadFilter,
        #[command(flatten)]
        store: StoreArgument,
    },
    /// Describe symbol files, or match them to a report
    #[command(after_help = format!("Examples:
  coroner symbols target/release/paint
  coroner symbols libpaint.so.debug --report 4f1c
  coroner symbols App.dSYM --report App-2026-11-21.ips
  coroner symbols paint.sym --format json | jq '.[].debug_id'

Exit status: 0 success, 1 failure or, with --report, no matching file, 2 invalid usage."))]
    Symbols {
        /// ELF and Mach-O files, dSYM bundles, Breakpad `.sym` files
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Coroner or Apple report, or start of an event ID, to match
        #[arg(long)]
        report: Option<String>,
        /// Output format
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
        #[command(flatten)]
        store: StoreArgument,
    },
    /// Send reports to Sentry or an OpenTelemetry Collector
    #[command(after_help = format!("Examples:
  coroner send --dsn https://KEY@o1.ingest.example.com/42      all reports in the store
  SENTRY_DSN=… coroner send 4f1c reports/20261121T010203Z-5….json
  coroner send 4f1c --attach app.log --symbols build/symbols
  coroner send --otlp http://localhost:4318                    log records, to an OpenTelemetry Collector

If a report is sent twice, Sentry keeps one event, by its event ID. An OTLP server keeps both log records, with the same `log.record.uid`.

{EXIT_STATUS}"))]
    Send {
        #[command(flatten)]
        arguments: Box<send::SendArguments>,
        #[command(flatten)]
        store: StoreArgument,
    },
    /// Convert a report to another format
    #[command(after_help = format!("Examples:
  coroner convert 4f1c --to sentry | jq .exception
  coroner convert report.coroner --to sentry-envelope > report.envelope

{EXIT_STATUS}"))]
    Convert {
        /// Report file, run directory, or start of an event ID [default: newest in the store]
        report: Option<String>,
        /// Target format
        #[arg(long, value_enum)]
        to: convert::Form,
        /// Write to FILE instead of standard output
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        #[command(flatten)]
        symbols: SymbolArguments,
        #[command(flatten)]
        store: StoreArgument,
    },
    /// Check whether Coroner works on this system
    #[command(after_help = format!("Examples:
  coroner doctor
  coroner doctor --program target/release/paint --store ~/.local/state/paint/coroner

Run it the way the app runs: in the same container, as the same user.

Exit status: 0 reports can be made and stored, 1 a required check failed, 2 invalid usage."))]
    Doctor {
        /// Program to check [default: this command]
        #[arg(long, value_name = "PATH")]
        program: Option<PathBuf>,
        /// Output format
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
        #[command(flatten)]
        store: StoreArgument,
    },
    /// Generate shell completions
    #[command(after_help = format!("Examples:
  coroner completions bash > /etc/bash_completion.d/coroner
  coroner completions fish > ~/.config/fish/completions/coroner.fish

{EXIT_STATUS}"))]
    Completions {
        /// Shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Generate manual pages
    #[command(after_help = format!("Examples:
  coroner man /usr/local/share/man/man1

{EXIT_STATUS}"))]
    Man {
        /// Output folder, created if missing; without it, the main page is printed
        folder: Option<PathBuf>,
    },
    /// The app of `coroner demo`
    #[command(name = demo::APP, hide = true)]
    DemoApp {
        /// Name of the fault; without it, the app delivers the report of its last run
        #[arg(long)]
        fault: Option<String>,
        #[arg(long)]
        store: PathBuf,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Human-readable
    Text,
    /// Machine-readable
    Json,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ReportFormat {
    /// Human-readable
    Text,
    /// Machine-readable
    Json,
    /// Compact, for an issue; without data specific to this machine
    Markdown,
    /// Self-contained web page
    Html,
    /// OpenTelemetry log record, as sent by `send --otlp` (OTLP/JSON)
    Otlp,
}

fn main() -> ExitCode {
    let Arguments { command, color } = Arguments::parse();
    match color {
        ColorChoice::Auto => anstream::ColorChoice::Auto,
        ColorChoice::Always => anstream::ColorChoice::Always,
        ColorChoice::Never => anstream::ColorChoice::Never,
    }
    .write_global();
    match run(command) {
        Ok(code) => code,
        Err(failure) if failure.is_closed_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            failure.print();
            ExitCode::FAILURE
        }
    }
}

fn texts(unscrubbed: bool) -> Texts {
    if unscrubbed { Texts::AsTheyWere } else { Texts::Scrubbed }
}

fn run(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Demo { list: true, .. } => demo::list()?,
        Command::Demo { fault, thread, store, .. } => demo::run(fault, thread, &store.path()?)?,
        Command::List { folder, format, unscrubbed, watch, symbols, filter, store } => {
            let path = store_location::folder_or(folder, store)?;
            match watch {
                true => list::watch(&path, texts(unscrubbed), format, &filter, symbols)?,
                false => list::run(&path, texts(unscrubbed), format, &filter, symbols)?,
            }
        }
        Command::Group { arguments } => group::run(arguments, None)?,
        Command::Top { arguments, count } => group::run(arguments, Some(count.get()))?,
        Command::Show { report, format, html, output, thread, all_frames, unscrubbed, symbols, store } => {
            let format = if html { ReportFormat::Html } else { format };
            let view =
                show::View { format, threads: thread, texts: texts(unscrubbed), all_frames, output: output.as_deref() };
            show::run(report.as_deref(), store.path().ok().as_deref(), &symbols, &view)?;
        }
        #[cfg(target_os = "linux")]
        Command::Dump { arguments, store } => dump::run(&arguments, store.path().ok().as_deref())?,
        #[cfg(target_os = "linux")]
        Command::Collect { arguments } => return collect::run(&arguments),
        #[cfg(target_os = "linux")]
        Command::Run { arguments, store } => return Ok(run::run(&arguments, store.path().ok().as_deref())),
        Command::Import { arguments, store } => import::run(arguments, store.path().ok())?,
        Command::Open { report, symbols, store } => {
            page::open(report.as_deref(), store.path().ok().as_deref(), &symbols)?;
        }
        Command::Symbolicate { report, symbols, output, format, thread, store } => {
            let output = symbolicate::Output { path: output.as_deref(), format, threads: thread };
            return symbolicate::run(report.as_deref(), &symbols, store.path().ok().as_deref(), &output);
        }
        Command::Symbols { files, report, format, store } => {
            return symbols::run(&files, report.as_deref(), store.path().ok().as_deref(), format);
        }
        Command::Send { arguments, store } => send::run(*arguments, store.path().ok().as_deref())?,
        Command::Convert { report, to, output, symbols, store } => {
            convert::run(report.as_deref(), to, output.as_deref(), store.path().ok().as_deref(), &symbols)?;
        }
        Command::Completions { shell } => manual::completions(shell)?,
        Command::Man { folder } => manual::pages(folder.as_deref())?,
        Command::Doctor { program, format, store } => {
            let findings = doctor::examine(&store.path()?, program);
            match format {
                Format::Text => doctor::print(&findings, &mut terminal::standard_output())?,
                Format::Json => terminal::print_line(serde_json::to_string_pretty(&findings)?)?,
            }
            if findings.iter().any(|finding| finding.grade == doctor::Grade::Fails) {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::DemoApp { fault, store } => return demo::app(fault.as_deref(), &store),
    }
    Ok(ExitCode::SUCCESS)
}
