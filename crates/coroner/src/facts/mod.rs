//! What is written down at install because it can't be asked for when the process dies: app, system, device.
//!
//! No command line and no environment variables: they hold secrets.

#[cfg(not(target_vendor = "apple"))]
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use coroner_report::run_state::{Fact, FactsEncoder, Limits, RunState};

use crate::config::Config;

#[cfg(target_vendor = "apple")]
mod info_plist;
#[cfg(target_vendor = "apple")]
#[path = "darwin.rs"]
mod os;
#[cfg(not(target_vendor = "apple"))]
#[path = "linux.rs"]
mod os;

/// Writes the facts of this process to its run state. What can't be found out is left out.
pub(crate) fn write(state: &RunState<'_>, config: &Config) {
    let mut buffer = vec![0; Limits::default().facts_bytes as usize];
    let written = state.set_facts_with(&mut buffer, |facts| {
        app(facts, config);
        os::system(facts);
        os::runtime(facts);
        os::device(facts);
        facts.text(Fact::DEVICE_LOCALE, &locale());
    });
    if let Err(error) = written {
        log::warn!("coroner: the facts of app and system could not be written: {error}");
    }
}

/// What the app states of itself beside its [`Config`]: Apple's bundles do.
#[derive(Debug, Default, PartialEq, Eq)]
struct Stated {
    /// Its name for people.
    name: Option<String>,
    version: Option<String>,
    build: Option<String>,
}

impl Stated {
    #[cfg(not(target_vendor = "apple"))]
    fn by_bundle_of(_program: &Path) -> Stated {
        Stated::default()
    }
}

fn app(facts: &mut FactsEncoder<'_>, config: &Config) {
    facts.text(Fact::APP_ID, &config.app);
    let program = std::env::current_exe().ok();
    let stated = program.as_deref().map(Stated::by_bundle_of).unwrap_or_default();
    let version = config.version.as_ref().or(stated.version.as_ref());
    facts.text(Fact::APP_NAME, stated.name.as_deref().unwrap_or_default());
    facts.text(Fact::APP_VERSION, version.map(String::as_str).unwrap_or_default());
    facts.text(Fact::APP_BUILD, stated.build.as_deref().unwrap_or_default());
    let release = version.map(|version| {
        let build = stated.build.as_ref().map(|build| format!("+{build}")).unwrap_or_default();
        format!("{}@{version}{build}", config.app)
    });
    facts.text(Fact::APP_RELEASE, &config.release.clone().or(release).unwrap_or_default());
    facts.text(Fact::APP_DIST, config.dist.as_deref().unwrap_or_default());
    facts.text(Fact::APP_ENVIRONMENT, config.environment.as_deref().unwrap_or_default());
    if let Some(path) = program {
        facts.text(Fact::EXECUTABLE, &path.to_string_lossy());
        facts.text(Fact::PROCESS_NAME, &path.file_name().unwrap_or_default().to_string_lossy());
    }
    facts.uint(Fact::PID, std::process::id().into());
    if let Ok(now) = SystemTime::now().duration_since(UNIX_EPOCH) {
        facts.uint(Fact::INSTALLED, now.as_nanos() as u64);
    }
    facts.text(Fact::SDK_VERSION, env!("CARGO_PKG_VERSION"));
}

/// The language and the region that a command-line program is given.
fn locale() -> String {
    let locale = ["LC_ALL", "LC_MESSAGES", "LANG"].into_iter().find_map(|name| std::env::var(name).ok());
    locale.unwrap_or_default().split('.').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_report::RunFacts;
    use coroner_report::run_state::ProcessIdentity;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn the_facts_of_this_process_are_in_its_run_state() {
        let limits = Limits::default();
        let words: Vec<AtomicU64> = (0..limits.size() / 8).map(|_| AtomicU64::new(0)).collect();
        let state = RunState::create(&words, &limits, [1; 16], &ProcessIdentity::default()).unwrap();
        write(&state, &Config::new("app").version("1.2").environment("test"));

        let facts = RunFacts::read(&state.to_bytes()).unwrap();
        assert_eq!(facts.app.id.as_deref(), Some("app"));
        assert_eq!(facts.app.release.as_deref(), Some("app@1.2"));
        assert_eq!(facts.app.environment.as_deref(), Some("test"));
        assert_eq!(facts.app.pid, Some(std::process::id()));
        assert!(facts.device.processor_count.is_some_and(|count| count > 0));
        assert!(facts.os.kernel_version.is_some());
        assert!(facts.app.runtime_name.is_some());
        assert!(facts.problems.is_empty(), "{:?}", facts.problems);
    }
}
