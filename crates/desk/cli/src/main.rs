//! The `coroner` command.
//!
//! There is a file for each command; this one has the command line and the exit codes: 0 done, 1
//! failed, 2 wrong usage.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
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
use symbol_search::SymbolArguments;

/// The last line of each command's help.
const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed, 2 wrong usage.";

/// Records how apps die, and shows it.
#[derive(Parser)]
#[command(name = "coroner", version, about, after_help = EXIT_CODES, max_term_width = 120)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Crash an app for real, start it again, and show the report of its death
    #[command(after_help = format!("Examples:
  coroner demo                   a store to a null pointer
  coroner demo stack-overflow    another way to die
  coroner demo --list            all of them

{EXIT_CODES}"))]
    Demo {
        /// The way to die; see --list
        #[arg(default_value = "null-store", value_parser = demo::fault)]
        fault: &'static coroner_faults::Fault,
        /// List the ways to die
        #[arg(long)]
        list: bool,
        /// Which threads of the report to show: a number, `crashed` or `all`
        #[arg(long, default_value = "crashed", value_name = "N|crashed|all")]
        thread: ThreadFilter,
        #[command(flatten)]
        store: StoreArgument,
    },
    /// Run a program that does not know of Coroner, and explain its crash
    #[cfg(target_os = "linux")]
    #[command(after_help = "Examples:
  coroner run -- ./paint picture.png
  coroner run --symbols build/symbols -- python3 script.py
  CORONER_LIBRARY=/opt/coroner/lib/libcoroner_ffi.so coroner run -- paint

The program runs unchanged, with libcoroner_ffi.so preloaded (LD_PRELOAD): the one beside this command, in ../lib, or the one that CORONER_LIBRARY \
names. What it starts is watched as well. If it crashes, the explained report is on standard error when it has ended, and in the \
store. Programs that are linked statically and such as change their user take no library.

Exit codes: those of the program, or the signal that it ended by; 125 this command failed, 126 the program can't be run, 127 there is none.")]
    Run {
        #[command(flatten)]
        arguments: run::RunArguments,
        #[command(flatten)]
        store: StoreArgument,
    },
    /// Show where all threads of a process are that runs or hangs, which goes on
    #[cfg(target_os = "linux")]
    #[command(after_help = format!("Examples:
  coroner dump 4711
  coroner dump $(pidof paint) --minidump paint.dmp
  coroner dump 4711 --format html -o paint.html
  coroner dump --core core.4711        a core dump instead, compressed or not

It is stopped for the milliseconds in which its registers and stacks are read (ptrace), and goes on unharmed. The report is kept in the \
store, without memory; a minidump has up to 64 KiB of each stack, with what lies there: the environment, for one.

{EXIT_CODES}"))]
    Dump {
        #[command(flatten)]
        arguments: dump::DumpArguments,
        #[command(flatten)]
        store: StoreArgument,
    },
    /// Make reports of what dies on this machine: as the kernel's handler of core dumps
    #[cfg(target_os = "linux")]
    #[command(after_help = format!("Examples:
  sysctl -w kernel.core_pattern='|/usr/local/bin/coroner collect %P %u %g %t %d'
  sysctl -w kernel.core_pattern='@@/run/coroner.socket' && coroner collect --listen /run/coroner.socket    (Linux 6.17)
  coroner list --store /var/lib/coroner/1000

Each user's reports are in a folder of that user's own below --store; those of root's and of set-user-ID programs in `0`. The kernel starts it as \
root; before it reads anything of what died it is the user whose process it was (of root's: nobody), without any capability, with \
limits of time and memory. No core dump is kept.

{EXIT_CODES}"))]
    Collect {
        #[command(flatten)]
        arguments: collect::CollectArguments,
    },
    /// List the reports of a store or a folder, oldest first
    #[command(after_help = format!("Examples:
  coroner list                                     reports of `coroner demo`
  coroner list --store ~/.local/state/paint/coroner
  coroner list /srv/reports                        a folder that a folder sink writes
  coroner list --since 7d --signal SIGSEGV --tag country=at
  coroner list --format json | jq '.[].event_id'
  coroner list --watch                             and each new one as it comes, until Ctrl-C

What a folder's reports are is remembered in the user's folder for caches, so that only new ones are read. \
A column has at most 400 characters, on a terminal what it has room for; JSON has all of each text.

{EXIT_CODES}"))]
    List {
        /// A folder of reports, or a store
        folder: Option<PathBuf>,
        /// How to print them
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
        /// Show what the app wrote as it was, with its secrets
        #[arg(long)]
        unscrubbed: bool,
        /// Go on, and show each new report as it comes; as JSON, one object a line
        #[arg(long, conflicts_with = "newest")]
        watch: bool,
        #[command(flatten)]
        filter: filter::Filter,
        #[command(flatten)]
        store: StoreArgument,
    },
    /// Put reports of the same cause together: those with like stacks
    #[command(visible_alias = "groups", after_help = format!("Examples:
  coroner group
  coroner group /srv/reports --since 7d
  coroner group --format json | jq '.[0].signature'

By which rules is said in docs/grouping.md. A line has at most 400 characters, on a terminal what it has \
room for; JSON has all of each text.

{EXIT_CODES}"))]
    Group {
        #[command(flatten)]
        arguments: group::GroupArguments,
    },
    /// The causes with the most reports
    #[command(after_help = format!("Examples:
  coroner top                   the ten that happen most
  coroner top --count 3 --release paint@1.2.3

{EXIT_CODES}"))]
    Top {
        #[command(flatten)]
        arguments: group::GroupArguments,
        /// How many
        #[arg(long, default_value = "10")]
        count: std::num::NonZeroUsize,
    },
    /// Show one report
    #[command(after_help = format!("Examples:
  coroner show                                     the newest report
  coroner show 4f1c                                the report whose event id begins with 4f1c
  coroner show reports/20261121T010203Z-4f1c….json
  coroner show 4f1c --thread all
  coroner show 4f1c --format json | jq .crash
  coroner show report.coroner --symbols build/symbols
  coroner show tombstone_00 --symbols build/symbols   what Android wrote: tombstone, log or ANR trace

{EXIT_CODES}"))]
    Show {
        /// A report file (.json or .coroner), what Apple's or Android's systems wrote, the directory of a run, or the beginning of an event
        /// id; without it, the newest report of the store
        report: Option<String>,
        /// How to print it
        #[arg(long, value_enum, default_value_t = ReportFormat::Text)]
        format: ReportFormat,
        /// As a page for browsers, in one file: `--format html`
        #[arg(long, conflicts_with = "format")]
        html: bool,
        /// Write to this file instead of standard output
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Which threads to show: a number, `crashed` or `all`
        #[arg(long, default_value = "crashed", value_name = "N|crashed|all")]
        thread: ThreadFilter,
        /// Show each frame: without it, one line stands for several functions of a runtime, for the rounds of a recursion after the second, and
        /// for what the runtime called to throw
        #[arg(long)]
        all_frames: bool,
        /// Show what the app wrote as it was, with its secrets, and of an event id what the crash left instead of what was delivered
        #[arg(long)]
        unscrubbed: bool,
        #[command(flatten)]
        symbols: SymbolArguments,
        #[command(flatten)]
        store: StoreArgument,
    },
    /// Open a report in the browser, as a page
    #[command(after_help = "Examples:
  coroner open
  coroner open 4f1c

The page is one file, in `coroner` in $XDG_RUNTIME_DIR or in `coroner/pages` in the user's folder for caches; its path is printed. It asks \
no network for anything. The browser is $BROWSER, or the system's. One that still runs after five seconds is taken to show it.

Exit codes: 0 done, 1 failed, also where no browser could be started or it failed, 2 wrong usage.")]
    Open {
        /// A report file, the directory of a run, or the beginning of an event id; without it, the newest report of the store
        report: Option<String>,
        #[command(flatten)]
        symbols: SymbolArguments,
        #[command(flatten)]
        store: StoreArgument,
    },
    /// Take in as reports what others wrote of a death: core dumps, minidumps, reports of Apple's and Android's, logs
    #[command(after_help = format!("Examples:
  coroner import core.4711
  coroner import upload.dmp --symbols build/symbols
  coroner import tombstone_00 anr_2026 -o reports
  coroner import App-2026-11-21-101112.ips --symbols App.dSYM
  coroner import --log server.log          reports of AddressSanitizer, panics of Go and Rust
  journalctl -u shop | coroner import --log -

Stacks are walked with the unwind data of the programs' own files, found by build id: at their paths, in /usr/lib/debug and in the folders \
of --symbols. `coroner show FILE` shows such a file without taking it in.

{EXIT_CODES}"))]
    Import {
        #[command(flatten)]
        arguments: import::ImportArguments,
        #[command(flatten)]
        store: StoreArgument,
    },
    /// Find names for the frames of a report: one of Coroner's, or one that an Apple system wrote (.ips, .crash)
    #[command(after_help = format!("Examples:
  coroner symbolicate report.coroner --symbols build/symbols
  coroner symbolicate 4f1c --symbols build/symbols --format json | jq .threads
  coroner symbolicate App-2026-11-21.ips --symbols App.dSYM --output named.ips
  coroner symbolicate old.crash --symbols ~/Library/Developer/Xcode/Archives

Apple's reports come out as they were, with names where they had none. What is found, and why not more, is said on standard \
error.

Exit codes: 0 done, 1 failed, or not one frame or not one of the program's own has a name, or files were named with --symbols and none is \
of the report (their ids are said), 2 wrong usage."))]
    Symbolicate {
        /// A report file (.coroner, .json, .ips, .crash), the directory of a run, or the beginning of an event id; without it, the newest
        /// report of the store
        report: Option<String>,
        #[command(flatten)]
        symbols: SymbolArguments,
        /// Write to this file instead of standard output
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        /// How to print a report of Coroner's; without it, as text
        #[arg(long, value_enum)]
        format: Option<Format>,
        /// Which threads to show of a report of Coroner's: a number, `crashed` or `all`
        #[arg(long, default_value = "crashed", value_name = "N|crashed|all")]
        thread: ThreadFilter,
        #[command(flatten)]
        store: StoreArgument,
    },
    /// Say what symbol files can name, and whether they are of a report
    #[command(after_help = format!("Examples:
  coroner symbols target/release/paint
  coroner symbols libpaint.so.debug --report 4f1c
  coroner symbols App.dSYM --report App-2026-11-21.ips
  coroner symbols paint.sym --format json | jq '.[].debug_id'

Exit codes: 0 done, 1 failed or, with --report, no file is of one of its images, 2 wrong usage."))]
    Symbols {
        /// ELF and Mach-O files, dSYM bundles, breakpad `.sym` files
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// A report, Coroner's own or one of Apple's, or the beginning of an event id
        #[arg(long)]
        report: Option<String>,
        /// How to print it
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
        #[command(flatten)]
        store: StoreArgument,
    },
    /// Send reports to Sentry or a server that speaks its protocol, or by OTLP
    #[command(after_help = format!("Examples:
  coroner send --dsn https://KEY@o1.ingest.example.com/42      all reports of the store
  SENTRY_DSN=… coroner send 4f1c reports/20261121T010203Z-5….json
  coroner send 4f1c --attach app.log --symbols build/symbols
  coroner send --otlp http://localhost:4318                    log records, to an OpenTelemetry Collector

A report that is sent twice is one event: servers know it by its id. Of log records both are there, with one `log.record.uid`.

{EXIT_CODES}"))]
    Send {
        #[command(flatten)]
        arguments: Box<send::SendArguments>,
        #[command(flatten)]
        store: StoreArgument,
    },
    /// Write a report in another form
    #[command(after_help = format!("Examples:
  coroner convert 4f1c --to sentry | jq .exception
  coroner convert report.coroner --to sentry-envelope > report.envelope

{EXIT_CODES}"))]
    Convert {
        /// A report file (.json or .coroner), the directory of a run, or the beginning of an event id; without it, the newest report of the
        /// store
        report: Option<String>,
        /// The form
        #[arg(long, value_enum)]
        to: convert::Form,
        /// Write to this file instead of standard output
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        #[command(flatten)]
        symbols: SymbolArguments,
        #[command(flatten)]
        store: StoreArgument,
    },
    /// Say what of Coroner works on this system, what doesn't, and why
    #[command(after_help = format!("Examples:
  coroner doctor
  coroner doctor --program target/release/paint --store ~/.local/state/paint/coroner

Run it as the app runs: in its container, as its user.

Exit codes: 0 reports can be made and kept, 1 something they need fails, 2 wrong usage."))]
    Doctor {
        /// The program whose crashes are to be reported; without it, this one
        #[arg(long, value_name = "PATH")]
        program: Option<PathBuf>,
        /// How to print what is found
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
        #[command(flatten)]
        store: StoreArgument,
    },
    /// Print completions for a shell
    #[command(after_help = format!("Examples:
  coroner completions bash > /etc/bash_completion.d/coroner
  coroner completions fish > ~/.config/fish/completions/coroner.fish

{EXIT_CODES}"))]
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Write the manual pages of this command and of its parts to a folder
    #[command(after_help = format!("Examples:
  coroner man /usr/local/share/man/man1

{EXIT_CODES}"))]
    Man {
        /// The folder, which is made if it is not there; without it, the command's own page goes to standard output
        folder: Option<PathBuf>,
    },
    /// The app of `coroner demo`
    #[command(name = demo::APP, hide = true)]
    DemoApp {
        /// The way to die; without it, the app delivers what its last run left
        #[arg(long)]
        fault: Option<String>,
        #[arg(long)]
        store: PathBuf,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people
    Text,
    /// For programs
    Json,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ReportFormat {
    /// For people
    Text,
    /// For programs
    Json,
    /// For an issue: compact, without what is only of this machine
    Markdown,
    /// A page for browsers, in one file
    Html,
    /// A log record of OpenTelemetry, as `send --otlp` sends it: OTLP's JSON encoding
    Otlp,
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
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
        Command::List { folder, format, unscrubbed, watch, filter, store } => {
            let path = store_location::folder_or(folder, store)?;
            match watch {
                true => list::watch(&path, texts(unscrubbed), format, &filter)?,
                false => list::run(&path, texts(unscrubbed), format, &filter)?,
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
                Format::Json => terminal::say(serde_json::to_string_pretty(&findings)?)?,
            }
            if findings.iter().any(|finding| finding.grade == doctor::Grade::Fails) {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::DemoApp { fault, store } => return demo::app(fault.as_deref(), &store),
    }
    Ok(ExitCode::SUCCESS)
}
