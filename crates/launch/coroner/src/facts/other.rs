//! Other systems: what `uname` says, where there is one.

use coroner_report::run_state::{Fact, FactsEncoder};

/// Not known: nothing is taken over from an earlier run.
pub(super) fn machine(_pid_namespace: u64) -> u64 {
    0
}

/// The system: its name and version.
pub(super) fn system(facts: &mut FactsEncoder<'_>) {
    #[cfg(unix)]
    {
        let name = rustix::system::uname();
        let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
        let release = text(name.release());
        facts.text(Fact::OS_NAME, &text(name.sysname()));
        // `14.1-RELEASE-p3`: a version, and which build of it.
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

/// The device: processors.
pub(super) fn device(facts: &mut FactsEncoder<'_>) {
    if let Ok(processors) = std::thread::available_parallelism() {
        facts.uint(Fact::DEVICE_PROCESSOR_COUNT, processors.get() as u64);
    }
}

/// What of the program shows an update: nothing is read.
pub(super) fn program(_facts: &mut FactsEncoder<'_>) {}

/// The C library: not known.
pub(super) fn runtime(_facts: &mut FactsEncoder<'_>) {}
