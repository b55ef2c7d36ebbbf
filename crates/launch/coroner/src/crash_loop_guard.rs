//! Detects an app that crashes at each launch, so that the next launch can use a safe mode.

use std::time::Duration;

use crate::last_run::LastRun;

/// Decides whether the app should start in a safe mode.
///
/// A safe mode may omit plugins or the last document, or use default settings.
///
/// ```no_run
/// let coroner = coroner::install(coroner::Config::new("com.example.paint"))?;
/// if coroner::StartupGuard::default().is_due(&coroner.last_run()) {
///     // Ask the user, or start without what is not needed.
/// }
/// # Ok::<(), coroner::InstallError>(())
/// ```
///
/// The guard is due if the most recent runs all crashed soon after install: by default three in a
/// row, each within ten seconds. A run that ended otherwise, or ran longer, ends the row. The
/// crashes need not be the same, because a damaged heap crashes differently each time; if that
/// matters, use [`LastRun::same_crashes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartupGuard {
    crashes: u32,
    within: Duration,
}

impl Default for StartupGuard {
    fn default() -> Self {
        Self { crashes: 3, within: Duration::from_secs(10) }
    }
}

impl StartupGuard {
    /// Creates a guard that is due after three crashes within ten seconds each.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the number of crashes in a row, from 1 to 8.
    #[must_use]
    pub fn crashes(self, crashes: u32) -> Self {
        Self { crashes: crashes.clamp(1, crate::last_run::MAX_CRASHES as u32), ..self }
    }

    /// Sets the maximum time from install to each crash.
    #[must_use]
    pub fn within(self, within: Duration) -> Self {
        Self { within, ..self }
    }

    /// Whether the app should start in a safe mode.
    ///
    /// A crash at an unknown time counts as early, because there was no time to write a report.
    pub fn is_due(&self, last_run: &LastRun) -> bool {
        let most = self.within.as_millis();
        let soon = |ran_for: Option<u64>| ran_for.is_none_or(|ran_for| u128::from(ran_for) <= most);
        let early = last_run.crashes.iter().take_while(|crash| soon(crash.ran_for_ms)).count();
        early >= self.crashes as usize
    }
}

#[cfg(test)]
mod tests;
