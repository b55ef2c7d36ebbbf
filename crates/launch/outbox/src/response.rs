//! What a server answered.

/// Most bytes of an answer's body that are read: it says what was wrong.
pub(crate) const MAX_BODY: u64 = 16 << 10;

/// What a server answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// HTTP status.
    pub status: u16,
    /// Its headers that are text.
    pub headers: Vec<(String, String)>,
    /// The beginning of the body.
    pub body: Vec<u8>,
}

impl Response {
    /// The first header with that name, in whatever case it is written.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// Whether something else answers in a server's place, as the page of a network in which one has to log in: no server of the protocols
    /// that are spoken here redirects, or says `OK` by a page of HTML.
    pub fn is_portal(&self) -> bool {
        is_portal(self.status, &self.text())
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).trim().to_owned()
    }
}

/// [`Response::is_portal`], of a status and a body.
pub fn is_portal(status: u16, body: &str) -> bool {
    let body = body.trim_start_matches('\u{feff}').trim_start();
    let begins = |text: &str| body.get(..text.len()).is_some_and(|start| start.eq_ignore_ascii_case(text));
    let is_page = || ["<!doctype", "<html", "<?xml", "<head", "<!--"].into_iter().any(begins);
    (300..400).contains(&status) || ((200..300).contains(&status) && is_page())
}
