//! Hides private text in reports.

use coroner_report::model::hide_secrets;

use crate::config::Scrub;

/// The text to hide before the sinks get a report.
#[derive(Debug, Clone)]
pub(super) struct Scrubber {
    /// Whether to hide obvious secrets, recognized by their form.
    pub(super) secrets: bool,
    /// The app's function that hides private text.
    pub(super) own: Option<Scrub>,
}

impl Scrubber {
    /// Returns the replacement for `text`; `None` if it may stay.
    pub(super) fn scrub(&self, key: &str, text: &str) -> Option<String> {
        let hidden = self.secrets.then(|| hide_secrets(key, text)).flatten();
        let own = self.own.as_ref().and_then(|scrub| scrub(key, hidden.as_deref().unwrap_or(text)));
        own.or(hidden)
    }
}
