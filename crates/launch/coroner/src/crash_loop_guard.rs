//! Whether the app dies at each start: what a launch decides by whether to start in a safe mode.

use std::time::Duration;

use crate::last_run::LastRun;

/// Decides whether the app should start in a safe mode: without plugins, with its settings set back, without the document that was open last.
///
/// ```no_run
/// let coroner = coroner::install(coroner::Config::new("com.example.paint"))?;
/// if coroner::StartupGuard::default().is_due(&coroner.last_run()) {
///     // Ask the user, or start without what is not needed.
/// }
/// # Ok::<(), coroner::InstallError>(())
/// ```
///
/// It is due when the last runs crashed one directly after the other, so many of them, each so soon after install: by default three within ten seconds
/// each. A run that ended otherwise, or lived longer, ends the row. What the crashes were does not matter: a damaged heap dies
/// differently each time. Where it does, there is [`LastRun::same_crashes`].
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
    /// After three crashes within ten seconds each.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// After so many crashes, from 1 to 8.
    #[must_use]
    pub fn crashes(self, crashes: u32) -> Self {
        Self { crashes: crashes.clamp(1, crate::last_run::MAX_CRASHES as u32), ..self }
    }

    /// Each at most so long after install.
    #[must_use]
    pub fn within(self, within: Duration) -> Self {
        Self { within, ..self }
    }

    /// Whether the app should start in a safe mode. A crash of which it is not known how soon it came counts as one that came soon: there was no
    /// time to write a report.
    pub fn is_due(&self, last_run: &LastRun) -> bool {
        let most = self.within.as_millis();
        let soon = |ran_for: Option<u64>| ran_for.is_none_or(|ran_for| u128::from(ran_for) <= most);
        let early = last_run.crashes.iter().take_while(|crash| soon(crash.ran_for_ms)).count();
        early >= self.crashes as usize
    }
}

#[cfg(test)]
mod tests;
