//! `coroner send`.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use coroner::otlp::{self, Exporter};
use coroner::sentry::Dsn;
use coroner::sentry::envelope::{Attachment, Envelope, Item};
use coroner::sentry::event::{Event, EventOptions};
use coroner::sentry::minidump_attachment;
use coroner::sentry::transport::{Answer, HttpTransport, SendError, Transport, TransportOptions};
use coroner::{Report, hide_secrets};

use crate::failure::{Context, Failure};
use crate::listing::Listing;
use crate::store_location::NO_STORE;
use crate::symbol_search::SymbolArguments;
use crate::{bounded_read, outboxes, progress, report_lookup, report_reader, terminal};

/// The arguments of `coroner send`.
#[derive(clap::Args)]
pub(crate) struct SendArguments {
    /// Report files, run directories, or starts of event IDs [default: all reports in the store]
    #[arg(value_name = "REPORT")]
    reports: Vec<String>,
    /// Sentry DSN: https://KEY@HOST/PROJECT
    #[arg(long, env = "SENTRY_DSN", hide_env_values = true, required_unless_present = "otlp")]
    dsn: Option<String>,
    /// Send log records over OTLP instead, to a Collector such as http://localhost:4318
    ///
    /// $OTEL_EXPORTER_OTLP_HEADERS, $OTEL_RESOURCE_ATTRIBUTES and similar variables apply.
    #[arg(long, value_name = "URL", conflicts_with_all = ["attach", "minidump", "release"])]
    otlp: Option<String>,
    /// Attach this file to each report; repeatable
    #[arg(long, value_name = "PATH")]
    attach: Vec<PathBuf>,
    /// Attach a minidump created from each report
    ///
    /// The server then uses the minidump's threads and exception.
    #[arg(long)]
    minidump: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
    #[command(flatten)]
    symbols: SymbolArguments,
}

/// Labels of sent reports, and the way to the server.
#[derive(clap::Args)]
pub(crate) struct ConnectionArguments {
    /// Release for reports without one
    #[arg(long)]
    release: Option<String>,
    /// Environment for reports without one
    #[arg(long)]
    environment: Option<String>,
    /// Proxy to use instead of $HTTPS_PROXY and similar variables
    #[arg(long, value_name = "URL")]
    proxy: Option<String>,
    /// CA certificates (PEM) to trust instead of the system's
    #[arg(long, value_name = "PATH")]
    ca_file: Option<PathBuf>,
    /// Time limit for sending a report, in seconds
    #[arg(long, default_value_t = 30, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
    timeout: u64,
}

/// Maximum for the time limit: a day.
const MAX_SECONDS: u64 = 24 * 60 * 60;

fn seconds(text: &str) -> Result<u64, String> {
    let seconds = text.parse().ok().filter(|seconds| (1..=MAX_SECONDS).contains(seconds));
    seconds.ok_or_else(|| format!("expected a number of seconds from 1 to {MAX_SECONDS}"))
}

/// Sends reports one after another, and prints the result of each.
pub(crate) fn run(arguments: SendArguments, store: Option<&Path>) -> Result<(), Failure> {
    let mut server = Server::new(arguments.dsn.as_deref(), arguments.otlp.as_deref(), &arguments.connection)?;
    server.attach(&arguments.attach, arguments.minidump)?;
    let (whats, unread) = if arguments.reports.is_empty() { stored_reports(store)? } else { (arguments.reports, 0) };
    // Shared by all reports, because reports of one app have the same images.
    let mut symbols = arguments.symbols.local()?;
    let progress = progress::bar(whats.len(), "sending reports");
    // Draw it before the first report is sent, which can take as long as the time limit.
    progress.tick();
    let mut failed = 0;
    // All reports are sent, even if standard output is closed.
    let mut printed = Ok(());
    let mut unreachable = false;
    for (tried, what) in whats.iter().enumerate() {
        let opened = report_lookup::open_one(Some(what), store, report_reader::Texts::Scrubbed, Some(&mut symbols));
        let result = opened.and_then(|mut report| {
            let code = coroner_explain::ImageFiles::for_report(&report, &mut symbols);
            report.explanation = Some(coroner_explain::explain(&report, &code));
            report.scrub(&hide_secrets);
            server.send(&report).map(|()| report.event_id().to_string())
        });
        unreachable |= result.as_ref().is_err_and(Failure::is_unreachable);
        progress.suspend(|| match result {
            Ok(id) => {
                if let Err(error) = terminal::print_line(format_args!("sent {id}")) {
                    printed = Err(error);
                }
            }
            Err(failure) => {
                failed += 1;
                anstream::eprintln!("{what}:");
                failure.print();
            }
        });
        progress.inc(1);
        if unreachable {
            // An unreachable server fails for every report: don't read and symbolicate the others.
            failed = whats.len() - tried + failed - 1;
            break;
        }
    }
    progress.finish_and_clear();
    match (whats.len() + unread, failed + unread) {
        (_, 0) => Ok(printed?),
        (1, _) => Err(Failure::new("can't send the report")),
        (all, failed) => Err(Failure::new(format!("can't send {failed} of {all} reports"))),
    }
}

/// The destination of reports.
pub(crate) enum Server {
    /// Sentry, or a server that implements its protocol, with what is added to each event.
    Sentry { transport: Box<HttpTransport>, options: EventOptions, attachments: Vec<Attachment>, minidump: bool },
    /// A Collector, over OTLP.
    Otlp(Box<Exporter>),
}

impl Server {
    /// Creates a connection to a Collector or, without one, to Sentry.
    pub(crate) fn new(
        dsn: Option<&str>,
        otlp: Option<&str>,
        connection: &ConnectionArguments,
    ) -> Result<Self, Failure> {
        let ConnectionArguments { release, environment, proxy, ca_file, timeout } = connection;
        let (timeout, ca_file, proxy) = (Duration::from_secs(*timeout), ca_file.clone(), proxy.clone());
        if let Some(endpoint) = otlp {
            let mut options = otlp::Options::for_endpoint(endpoint, None)
                .map_err(|error| Failure::new(format!("invalid environment variable: {error}")))?;
            options.labels.environment.clone_from(environment);
            options.transport.timeout = timeout;
            options.transport.proxy = proxy.or(options.transport.proxy);
            options.transport.ca_file = ca_file.or(options.transport.ca_file);
            let exporter = Exporter::new(options).map_err(|error| {
                Failure::new(error.to_string())
                    .advice("expected http://HOST:4318; records are sent to `v1/logs` below it")
            })?;
            return Ok(Self::Otlp(Box::new(exporter)));
        }
        // The message must not contain the DSN itself, because it includes a key.
        let dsn: Dsn = dsn.unwrap_or_default().parse().map_err(|error| {
            Failure::new(format!("invalid DSN: {error}")).advice("the server shows it in the project's settings")
        })?;
        let options = TransportOptions { proxy, ca_file, timeout, ..TransportOptions::default() };
        let transport = HttpTransport::new(&dsn, &options).map_err(|error| Failure::new(error.to_string()))?;
        let (release, environment) = (release.clone(), environment.clone());
        let options = EventOptions { release, environment, ..EventOptions::default() };
        Ok(Self::Sentry { transport: Box::new(transport), options, attachments: Vec::new(), minidump: false })
    }

    /// Attaches files, and a minidump, to each event.
    fn attach(&mut self, paths: &[PathBuf], with_minidump: bool) -> Result<(), Failure> {
        let Self::Sentry { attachments, minidump, .. } = self else { return Ok(()) };
        *minidump = with_minidump;
        for path in paths {
            attachments.push(Attachment {
                filename: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
                buffer: read(path).context(format!("can't read the attachment `{}`", path.display()))?,
                ..Attachment::default()
            });
        }
        Ok(())
    }

    /// Sends a report.
    pub(crate) fn send(&self, report: &Report) -> Result<(), Failure> {
        match self {
            Self::Sentry { transport, options, attachments, minidump } => {
                let mut envelope = Envelope::from_event(&Event::from_report(report, options));
                envelope.items.extend(attachments.iter().cloned().map(Item::attachment));
                if *minidump {
                    let minidump = minidump_attachment(report, options);
                    let minidump = minidump.map_err(|error| Failure::new(error.to_string()))?;
                    envelope.items.push(Item::attachment(minidump));
                }
                let alone = attachments.is_empty() && !*minidump;
                check_answer(transport.send(&envelope.to_bytes_sent_at(SystemTime::now())), alone)
            }
            Self::Otlp(exporter) => check_otlp_answer(exporter.send(report)),
        }
    }
}

/// Reads a file named by the user; fails for devices and pipes, which may be endless.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "not a regular file"));
    }
    bounded_read::read_bounded(path)
}

/// Returns a store's reports, and the number of those that could not be read.
fn stored_reports(store: Option<&Path>) -> Result<(Vec<String>, usize), Failure> {
    let store = store.ok_or_else(|| Failure::new(NO_STORE).advice("give reports, or a store with `--store DIR`"))?;
    let listing = Listing::open(store, report_reader::Texts::Scrubbed, None, false)?;
    let ids = listing.iter().map(|listed| listed.event_id.to_owned()).filter(|id| !id.is_empty());
    let ids: Vec<String> = ids.collect();
    if ids.is_empty() && listing.unread() == 0 {
        anstream::eprintln!("no reports in `{}`{}", store.display(), outboxes::summary(store));
    }
    Ok((ids, listing.unread()))
}

fn retry_advice(after: Option<&impl std::fmt::Display>) -> String {
    match after {
        Some(seconds) => format!("the server is busy or limits its rate; try again in {seconds} s"),
        None => "the server is busy or limits its rate; try again in a minute".to_owned(),
    }
}

/// Converts a server's answer to a result. `alone` means that the event had no attachments.
fn check_answer(answer: Result<Answer, SendError>, alone: bool) -> Result<(), Failure> {
    let answer = answer.map_err(|error| {
        Failure::new(format!("can't reach the server: {error}"))
            .advice("check the DSN's host, and whether a proxy is needed")
            .into_unreachable()
    })?;
    if answer.is_success() {
        return Ok(());
    }
    let failure = Failure::new(format!("the server rejected the report with {}: {}", answer.status, answer.body));
    Err(match answer.status {
        401 | 403 => failure.advice("check that the DSN's key belongs to the project"),
        404 => failure.advice("check the DSN's host, and that it implements Sentry's protocol"),
        413 if alone => failure.advice("the event is too large for this server even without attachments"),
        413 => failure.advice("the report is too large; send it without `--attach` and `--minidump`"),
        429 => failure.advice(retry_advice(answer.retry_after.as_ref())),
        _ => failure,
    })
}

/// Converts a Collector's answer to a result.
fn check_otlp_answer(answer: Result<otlp::Answer, SendError>) -> Result<(), Failure> {
    let answer = answer.map_err(|error| {
        Failure::new(format!("can't reach the server: {error}"))
            .advice("check the address (usually http://HOST:4318), and whether a proxy is needed")
            .into_unreachable()
    })?;
    if answer.is_taken {
        return Ok(());
    }
    let failure = Failure::new(format!("the server rejected the report with {}: {}", answer.status, answer.message));
    Err(match answer.status {
        200..=299 => Failure::new(format!("the server rejected the report: {}", answer.message)),
        401 | 403 => failure.advice("check the key in $OTEL_EXPORTER_OTLP_HEADERS"),
        404 => failure.advice("check that the address has an OTLP receiver for logs over HTTP"),
        429 | 502..=504 => failure.advice(retry_advice(answer.retry_after.as_ref())),
        _ => failure,
    })
}
