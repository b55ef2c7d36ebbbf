//! Parses the URLs of servers and proxies.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

/// A URL with a host: `SCHEME://USER:PASSWORD@HOST:PORT/PATH?QUERY`. Its strings contain no line
/// breaks, so they can be used in a request.
#[derive(Clone)]
pub(crate) struct Url {
    pub(crate) is_https: bool,
    /// A name or an address; IPv6 addresses without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Host and port as written in the URL.
    pub(crate) authority: String,
    /// Path and query.
    pub(crate) target: String,
    /// The value of an `Authorization` header for the URL's user and password.
    pub(crate) authorization: Option<String>,
}

impl Url {
    /// Parses an `http` or `https` URL.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let is_https = scheme.eq_ignore_ascii_case("https");
        if !(is_https || scheme.eq_ignore_ascii_case("http")) || !rest.bytes().all(|byte| byte.is_ascii_graphic()) {
            return None;
        }
        let rest = rest.split('#').next().unwrap_or_default();
        let (before, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (user, authority) = match before.rsplit_once('@') {
            Some((user, authority)) => (Some(user), authority),
            None => (None, before),
        };
        // Skip the colons of an IPv6 address, which are inside its brackets.
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port),
            _ => (authority, ""),
        };
        let own = if is_https { 443 } else { 80 };
        let port = if port.is_empty() { own } else { port.parse().ok()? };
        let (host, is_v6) = match host.strip_prefix('[') {
            Some(host) => (host.strip_suffix(']')?, true),
            None => (host, false),
        };
        (!host.is_empty() && host.contains(':') == is_v6).then(|| Self {
            is_https,
            host: host.to_owned(),
            port,
            authority: authority.to_owned(),
            target: if target.starts_with('/') { target.to_owned() } else { format!("/{target}") },
            authorization: user.map(basic),
        })
    }

    /// Returns host and port in the form that CONNECT requires.
    pub(crate) fn host_and_port(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

/// Writes the URL without user and password.
impl fmt::Debug for Url {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { is_https, authority, target, .. } = self;
        write!(out, "http{}://{authority}{target}", if *is_https { "s" } else { "" })
    }
}

/// Encodes a URL's user and password, which may be percent-encoded (`%41`), as RFC 7617 requires.
fn basic(user: &str) -> String {
    let (user, password) = user.split_once(':').unwrap_or((user, ""));
    let mut bytes = decode(user);
    bytes.push(b':');
    bytes.extend(decode(password));
    format!("Basic {}", BASE64_STANDARD.encode(bytes))
}

fn decode(text: &str) -> Vec<u8> {
    let digit = |at: usize| char::from(*text.as_bytes().get(at)?).to_digit(16);
    let mut bytes = Vec::new();
    let mut at = 0;
    while let Some(byte) = text.as_bytes().get(at) {
        let escaped = (*byte == b'%').then(|| Some((digit(at + 1)? << 4 | digit(at + 2)?) as u8)).flatten();
        bytes.push(escaped.unwrap_or(*byte));
        at += if escaped.is_some() { 3 } else { 1 };
    }
    bytes
}

#[cfg(test)]
mod tests;
