//! The URLs of servers and proxies.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use percent_encoding::percent_decode_str;
use url::Position;

/// An `http` or `https` URL.
#[derive(Clone)]
pub(crate) struct Url(url::Url);

impl Url {
    /// Parses an `http` or `https` URL.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let is_http = ["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
        // The parser would leave out line breaks and look for the host behind further slashes.
        if !is_http || rest.starts_with(['/', '\\']) || rest.contains(|character: char| character.is_ascii_control()) {
            return None;
        }
        url::Url::parse(text).ok().filter(|url| url.port() != Some(0)).map(Self)
    }

    pub(crate) fn is_https(&self) -> bool {
        self.0.scheme() == "https"
    }

    /// Returns the name or address; IPv6 addresses without brackets.
    pub(crate) fn host(&self) -> &str {
        self.0.host_str().unwrap_or_default().trim_matches(['[', ']'])
    }

    pub(crate) fn port(&self) -> u16 {
        self.0.port_or_known_default().unwrap_or_default()
    }

    /// Returns host and port, the latter unless it is the scheme's own.
    pub(crate) fn authority(&self) -> &str {
        &self.0[Position::BeforeHost..Position::AfterPort]
    }

    /// Returns host and port in the form that CONNECT requires.
    pub(crate) fn host_and_port(&self) -> String {
        format!("{}:{}", self.0.host_str().unwrap_or_default(), self.port())
    }

    /// Returns path and query.
    pub(crate) fn target(&self) -> &str {
        &self.0[Position::BeforePath..Position::AfterQuery]
    }

    /// Returns the value of an `Authorization` header for the URL's user and password, which are
    /// percent-encoded there (RFC 7617).
    pub(crate) fn authorization(&self) -> Option<String> {
        let (user, password) = (self.0.username(), self.0.password());
        if user.is_empty() && password.is_none() {
            return None;
        }
        let mut bytes: Vec<u8> = percent_decode_str(user).collect();
        bytes.push(b':');
        bytes.extend(percent_decode_str(password.unwrap_or_default()));
        Some(format!("Basic {}", BASE64_STANDARD.encode(bytes)))
    }
}

/// Writes the URL without user and password.
impl fmt::Debug for Url {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}://{}{}", self.0.scheme(), self.authority(), self.target())
    }
}

#[cfg(test)]
mod tests;
