//! Hiding what is private in the texts of a report.

use coroner_report::model::hide_secrets;

use crate::config::Scrub;

/// What is hidden before the sinks get a report.
#[derive(Debug, Clone)]
pub(super) struct Scrubber {
    /// What is surely a secret by its form.
    pub(super) secrets: bool,
    /// What only the app knows to be private.
    pub(super) own: Option<Scrub>,
}

impl Scrubber {
    /// Returns the text to stand in the place of one; `None` if that may stay.
    pub(super) fn scrub(&self, key: &str, text: &str) -> Option<String> {
        let hidden = self.secrets.then(|| hide_secrets(key, text)).flatten();
        let own = self.own.as_ref().and_then(|scrub| scrub(key, hidden.as_deref().unwrap_or(text)));
        own.or(hidden)
    }
}
