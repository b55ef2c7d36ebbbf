//! Facts on other systems, from `uname` where it exists.

use coroner_report::run_state::{Fact, FactsEncoder};

/// Returns 0: unknown, so no facts are reused from an earlier run.
pub(super) fn machine(_pid_namespace: u64) -> u64 {
    0
}

/// Adds the system's name and version.
pub(super) fn system(facts: &mut FactsEncoder<'_>) {
    #[cfg(unix)]
    {
        let Ok(name) = nix::sys::utsname::uname() else { return };
        let text = |text: &std::ffi::OsStr| text.to_string_lossy().into_owned();
        let release = text(name.release());
        facts.text(Fact::OS_NAME, &text(name.sysname()));
        // `14.1-RELEASE-p3` contains version and build.
        let (version, build) = release.split_once('-').unwrap_or((&release, ""));
        facts.text(Fact::OS_VERSION, version);
        facts.text(Fact::OS_BUILD, build);
        facts.text(Fact::OS_KERNEL_VERSION, &text(name.version()));
        facts.text(Fact::DEVICE_ARCH, &text(name.machine()));
    }
    #[cfg(not(unix))]
    {
        facts.text(Fact::OS_NAME, std::env::consts::OS);
        facts.text(Fact::DEVICE_ARCH, std::env::consts::ARCH);
    }
}

/// Adds the device's processors.
pub(super) fn device(facts: &mut FactsEncoder<'_>) {
    if let Ok(processors) = std::thread::available_parallelism() {
        facts.uint(Fact::DEVICE_PROCESSOR_COUNT, processors.get() as u64);
    }
}

/// Adds nothing, because no data that identifies an update is read on this system.
pub(super) fn program(_facts: &mut FactsEncoder<'_>) {}

/// Adds nothing, because the C library is unknown.
pub(super) fn runtime(_facts: &mut FactsEncoder<'_>) {}
