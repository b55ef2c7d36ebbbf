//! Facts about app, system and device. They are recorded at install, because a dying process can't
//! query them.
//!
//! They include no command line and no environment variables, which may contain secrets.

use std::path::{Path, PathBuf};

use coroner_report::run_state::{Fact, FactsEncoder, Limits, Scalar};

use crate::clock::now_ns;
use crate::last_run::app_number;
use crate::system::capture::{KEPT_VITALS, Run};

#[cfg(target_vendor = "apple")]
mod darwin;
#[cfg(target_vendor = "apple")]
mod info_plist;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux;
#[cfg(not(any(windows, target_os = "linux", target_os = "android", target_vendor = "apple")))]
mod other;
#[cfg(windows)]
mod windows;

#[cfg(target_vendor = "apple")]
use darwin as os;
#[cfg(any(target_os = "linux", target_os = "android"))]
use linux as os;
#[cfg(not(any(windows, target_os = "linux", target_os = "android", target_vendor = "apple")))]
use other as os;
#[cfg(windows)]
use windows as os;

#[cfg(windows)]
pub(crate) use os::process_start;
#[cfg(all(supported, not(target_vendor = "apple")))]
pub(crate) use os::{boot_id, build_id};

/// Returns the path of the program's file; empty if unknown.
#[cfg(supported)]
fn program(run: &Run) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::OsStr::from_bytes(run.program).into()
}

/// Returns the path of the program's file; empty if unknown.
#[cfg(not(supported))]
fn program(_run: &Run) -> PathBuf {
    std::env::current_exe().unwrap_or_default()
}

/// The app's own data.
#[derive(Debug, Default)]
pub(crate) struct App<'a> {
    pub(crate) id: &'a str,
    pub(crate) version: Option<&'a str>,
    /// If `None`, it is formed from id and version.
    pub(crate) release: Option<&'a str>,
    pub(crate) dist: Option<&'a str>,
    pub(crate) environment: Option<&'a str>,
}

/// Writes this process's facts to its run state.
///
/// Unavailable facts are left out. If this run reuses the files of an earlier run since boot, facts
/// about the machine are not queried again.
pub(crate) fn write(run: &Run, app: &App<'_>) {
    let mut buffer = vec![0; Limits::default().facts_bytes as usize];
    let state = &run.state;
    let machine = os::machine(run.pid_namespace);
    let before = run.previous.as_ref().filter(|before| machine != 0 && before.machine == machine);
    let written = state.set_facts_with(&mut buffer, |facts| {
        let start = facts.position();
        match before.and_then(|before| before.facts.get(start..)?.get(..before.machine_facts)) {
            Some(bytes) => facts.written_before(bytes),
            None => {
                os::system(facts);
                os::device(facts);
            }
        }
        state.set_scalar(Scalar::MACHINE, machine);
        state.set_scalar(Scalar::MACHINE_FACTS, (facts.position() - start) as u64);
        if let Some(before) = before {
            for (scalar, value) in KEPT_VITALS.into_iter().zip(before.vitals) {
                state.set_scalar(scalar, value);
            }
        }
        write_app(facts, &program(run), app);
        os::program(facts);
        os::runtime(facts);
        facts.text(Fact::DEVICE_LOCALE, &locale());
    });
    state.set_scalar(Scalar::APP, app_number(app.id));
    if let Err(error) = written {
        log::warn!("coroner: can't write the facts about app and system: {error}");
    }
}

/// The app's data from its bundle, in addition to [`App`]. Only on Apple systems.
#[derive(Debug, Default, PartialEq, Eq)]
struct Stated {
    /// The app's display name.
    name: Option<String>,
    version: Option<String>,
    build: Option<String>,
}

impl Stated {
    #[cfg(not(target_vendor = "apple"))]
    fn read_bundle(_program: &Path) -> Stated {
        Stated::default()
    }
}

fn write_app(facts: &mut FactsEncoder<'_>, program: &Path, app: &App<'_>) {
    facts.text(Fact::APP_ID, app.id);
    let stated = Stated::read_bundle(program);
    let version = app.version.or(stated.version.as_deref());
    facts.text(Fact::APP_NAME, stated.name.as_deref().unwrap_or_default());
    facts.text(Fact::APP_VERSION, version.unwrap_or_default());
    facts.text(Fact::APP_BUILD, stated.build.as_deref().unwrap_or_default());
    let release = version.map(|version| {
        let build = stated.build.as_ref().map(|build| format!("+{build}")).unwrap_or_default();
        format!("{}@{version}{build}", app.id)
    });
    facts.text(Fact::APP_RELEASE, app.release.or(release.as_deref()).unwrap_or_default());
    facts.text(Fact::APP_DIST, app.dist.unwrap_or_default());
    facts.text(Fact::APP_ENVIRONMENT, app.environment.unwrap_or_default());
    facts.text(Fact::EXECUTABLE, &program.to_string_lossy());
    facts.text(Fact::PROCESS_NAME, &program.file_name().unwrap_or_default().to_string_lossy());
    facts.uint(Fact::INSTALLED, now_ns());
    facts.text(Fact::SDK_VERSION, env!("CARGO_PKG_VERSION"));
}

/// Returns the language and region of the environment, as command-line programs use them.
fn locale() -> String {
    #[cfg(windows)]
    return os::locale();
    #[cfg(not(windows))]
    locale_of_environment()
}

#[cfg(not(windows))]
fn locale_of_environment() -> String {
    let locale = ["LC_ALL", "LC_MESSAGES", "LANG"].into_iter().find_map(|name| std::env::var(name).ok());
    locale.unwrap_or_default().split('.').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
