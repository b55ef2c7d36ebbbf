//! Hides private text in reports.

use coroner_report::model::hide_secrets;

use crate::config::Scrub;

/// The kinds of text to hide before the sinks get a report.
#[derive(Debug, Clone)]
pub(super) struct Scrubber {
    /// Hide text whose form is certainly that of a secret.
    pub(super) secrets: bool,
    /// Hide what only the app knows to be private.
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
