//! A server's answer.

use http::HeaderMap;

/// Maximum number of bytes of an answer's body that are read; the body explains errors.
pub(crate) const MAX_BODY: u64 = 16 << 10;

/// A server's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// HTTP status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The start of the body.
    pub body: Vec<u8>,
}

impl Response {
    /// Returns the first header with this name, ignoring case, if it is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Whether something else answers in the server's place, such as a network's login page.
    ///
    /// No server of the supported protocols redirects or answers `OK` with an HTML page.
    pub fn is_portal(&self) -> bool {
        is_portal(self.status, &self.text())
    }

    /// Returns the body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).trim().to_owned()
    }
}

/// [`Response::is_portal`] for a status and a body.
pub fn is_portal(status: u16, body: &str) -> bool {
    let body = body.trim_start_matches('\u{feff}').trim_start();
    let begins = |text: &str| body.get(..text.len()).is_some_and(|start| start.eq_ignore_ascii_case(text));
    let is_page = || ["<!doctype", "<html", "<?xml", "<head", "<!--"].into_iter().any(begins);
    (300..400).contains(&status) || ((200..300).contains(&status) && is_page())
}
