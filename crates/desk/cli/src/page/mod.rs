//! A report as a web page: one file that makes no network request and runs no script.
//!
//! The template (`maud`) escapes everything that comes from the report, no link's address is made
//! from it, and the page's content security policy allows only its own style sheet.

mod facts;
mod flame_graph;
mod frames;
mod memory;
mod source_lines;
mod style;
mod threads;
mod time_line;
mod wait_graph;

use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine;
use coroner::Report;
use coroner_explain::{Explanation, ImageFiles};
use coroner_process::trust::Entry;
use coroner_report::model::{InApp, InAppRules};
use maud::{DOCTYPE, Markup, html};
use sha2::{Digest, Sha256};

use crate::failure::{Context, Failure};
use crate::summary::{State, Summary};
use crate::symbol_search::{SymbolArguments, default_cache, image_keys};
use crate::{atomic_file, report_lookup, report_reader, terminal};

/// Renders a report's page.
pub(crate) fn render(report: &Report, explanation: &Explanation) -> String {
    let summary = Summary::new(report, Path::new(""), State::Stored);
    let rules = InAppRules::default();
    let in_app = InApp::new(&rules, report);
    let digest = base64::engine::general_purpose::STANDARD.encode(Sha256::digest(style::SHEET));
    let policy = format!("default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'");
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="referrer" content="no-referrer";
                title { (summary.title()) " – " (summary.app) }
                style { (maud::PreEscaped(style::SHEET)) }
            }
            body {
                header {
                    p.app { (summary.app) " " (summary.version) }
                    h1 { (summary.title()) }
                    p.cause { (explanation.headline) }
                    (facts::identity(report, &summary))
                }
                main {
                    (facts::why(explanation))
                    (wait_graph::section(report, explanation))
                    (flame_graph::section(report))
                    (facts::what_happened(report))
                    @for exception in &report.exceptions {
                        (threads::exception(report, exception, &in_app))
                    }
                    (threads::crashed(report, &in_app))
                    (time_line::section(report))
                    (facts::scope(report))
                    (threads::others(report, &in_app))
                    (memory::registers(report))
                    (memory::stacks(report))
                    (facts::images(report))
                    (facts::capture(report))
                }
                footer { "Event " code { (summary.event_id) } ", rendered by coroner " (env!("CARGO_PKG_VERSION")) }
            }
        }
    };
    // The template escapes only what HTML interprets.
    terminal::sanitize(&page.into_string())
}

/// A collapsed part of the page, which the keyboard and printing open like any `details` element.
fn collapsed(heading: &str, note: &str, content: &Markup) -> Markup {
    html! {
        section {
            details {
                summary { h2 { (heading) } @if !note.is_empty() { span.note { (note) } } }
                (content)
            }
        }
    }
}

/// Opens the page of the report that `what` names in a browser.
pub(crate) fn open(what: Option<&str>, store: Option<&Path>, symbols: &SymbolArguments) -> Result<(), Failure> {
    let mut symbolizer = symbols.symbolizer_for(what)?;
    let report = report_lookup::open_one(what, store, report_reader::Texts::Scrubbed, Some(&mut symbolizer))?;
    symbols.match_images(&image_keys(&report));
    let explanation = coroner_explain::explain(&report, &ImageFiles::for_report(&report, &mut symbolizer));
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(|folder| PathBuf::from(folder).join("coroner"));
    let cache = || default_cache().map(|folder| folder.join("pages"));
    let folder =
        runtime.filter(|folder| folder.is_absolute() && folder.parent().is_some_and(Path::is_dir)).or_else(cache);
    let folder =
        folder.unwrap_or_else(|| std::env::temp_dir().join(format!("coroner-{}", nix::unistd::geteuid().as_raw())));
    let folder = own_folder(folder)?;
    let path = folder.join(format!("{}.html", report.header.event_id));
    atomic_file::write(&path, render(&report, &explanation).as_bytes())?;
    let printed = terminal::print_line(path.display());
    let named = std::env::var("BROWSER").ok().filter(|browser| !browser.is_empty());
    let browser = named.unwrap_or_else(|| if cfg!(target_vendor = "apple") { "open" } else { "xdg-open" }.to_owned());
    start_browser(&browser, &path).map_err(|why| {
        Failure::new(format!("can't open the page in a browser: {why}"))
            .advice("open the path above in a browser, or name a browser in $BROWSER")
    })?;
    Ok(printed?)
}

/// Creates the folder if it doesn't exist. If others could write in it, creates one with another
/// name: they could replace the page.
fn own_folder(folder: PathBuf) -> Result<PathBuf, Failure> {
    let doing = || format!("can't create `{}`", folder.display());
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    match folder.symlink_metadata() {
        Ok(found) => {
            let entry = Entry { mode: found.mode(), owner: found.uid(), links: found.nlink() };
            if entry.check_directory(nix::unistd::geteuid().as_raw()).is_ok() {
                return Ok(folder);
            }
            Ok(tempfile::Builder::new().prefix("coroner-").tempdir().context(doing())?.keep())
        }
        Err(error) => Err(made.err().unwrap_or(error)).context(doing()),
    }
}

/// Time to wait for a browser to fail.
const START: Duration = Duration::from_secs(5);

/// Starts a browser with the page. Returns the reason if it fails immediately.
fn start_browser(browser: &str, path: &Path) -> Result<(), String> {
    let mut words = browser.split_whitespace();
    let program = words.next().unwrap_or("xdg-open");
    let started = Command::new(program)
        .args(words)
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut child = started.map_err(|error| format!("can't start `{program}`: {error}"))?;
    let began = Instant::now();
    while began.elapsed() < START {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("`{browser}` failed: {status}")),
            Ok(None) => std::thread::sleep(Duration::from_millis(20)),
            Err(_) => return Ok(()),
        }
    }
    Ok(())
}
