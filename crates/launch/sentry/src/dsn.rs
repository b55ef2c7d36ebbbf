//! The DSN: a project's address at a server, with its key: `https://KEY@HOST/PROJECT`.

use std::fmt;
use std::str::FromStr;

/// An error from parsing a [`Dsn`]. Its message doesn't contain the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseDsnError {
    /// The scheme is not `https://` or `http://`.
    #[error("missing scheme; expected `https://` or `http://`")]
    Scheme,
    /// The public key before the host is missing, or contains an `@` or a character invalid in
    /// headers.
    #[error("missing or invalid public key; expected `https://KEY@HOST/PROJECT`")]
    Key,
    /// The host is missing or contains invalid characters.
    #[error("missing or invalid host; expected an ASCII name (`xn--…` for an international one) or an address")]
    Host,
    /// The port is not a number from 1 to 65535.
    #[error("invalid port; expected a number from 1 to 65535")]
    Port,
    /// The project after the host is missing or contains characters that a URL can't.
    #[error("missing or invalid project; expected `https://KEY@HOST/PROJECT`")]
    Project,
}

/// A project's address with its key: `https://KEY@HOST/PROJECT`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Dsn {
    is_https: bool,
    public_key: String,
    secret_key: Option<String>,
    host: String,
    /// `None` for the scheme's default port.
    port: Option<u16>,
    path: String,
    project: String,
}

impl Dsn {
    /// Returns the public key.
    pub fn public_key(&self) -> &str {
        &self.public_key
    }

    /// Returns the secret key, which only old servers use.
    pub fn secret_key(&self) -> Option<&str> {
        self.secret_key.as_deref()
    }

    /// Returns the server's name or address; an IPv6 address is in brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the server's port.
    pub fn port(&self) -> u16 {
        self.port.unwrap_or(if self.is_https { 443 } else { 80 })
    }

    /// Returns the prefix of the server's paths: `/` or `/prefix/`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the project's id.
    pub fn project_id(&self) -> &str {
        &self.project
    }

    /// Returns the URL to which envelopes are posted.
    pub fn envelope_url(&self) -> String {
        format!("{}://{}{}api/{}/envelope/", self.scheme(), self.authority(), self.path, self.project)
    }

    fn scheme(&self) -> &'static str {
        if self.is_https { "https" } else { "http" }
    }

    fn authority(&self) -> String {
        self.port.map_or_else(|| self.host.clone(), |port| format!("{}:{port}", self.host))
    }
}

impl FromStr for Dsn {
    type Err = ParseDsnError;

    fn from_str(text: &str) -> Result<Self, ParseDsnError> {
        let (scheme, rest) = text.trim().split_once("://").ok_or(ParseDsnError::Scheme)?;
        let is_https = scheme.eq_ignore_ascii_case("https");
        if !is_https && !scheme.eq_ignore_ascii_case("http") {
            return Err(ParseDsnError::Scheme);
        }
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, server) = authority.rsplit_once('@').ok_or(ParseDsnError::Key)?;
        let (public_key, secret_key) = user.split_once(':').map_or((user, None), |(key, secret)| (key, Some(secret)));
        let secret_key = secret_key.filter(|secret| !secret.is_empty());
        if public_key.is_empty() || !is_plain(user) || user.contains('@') {
            return Err(ParseDsnError::Key);
        }
        // Skip the colons of an IPv6 address, which are inside its brackets.
        let colon = server.rfind(':').filter(|colon| server.rfind(']').is_none_or(|bracket| bracket < *colon));
        let (host, port) = colon.map_or((server, ""), |colon| (&server[..colon], &server[colon + 1..]));
        if !is_host(host) {
            return Err(ParseDsnError::Host);
        }
        let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
        let port = match port {
            "" => None,
            port => Some(port.parse().ok().filter(|port| is_number && *port != 0).ok_or(ParseDsnError::Port)?),
        };
        let path = path.trim_matches('/');
        if !is_plain(path) {
            return Err(ParseDsnError::Project);
        }
        let (prefix, project) = path.rsplit_once('/').unwrap_or(("", path));
        let prefix = prefix.trim_matches('/');
        if project.is_empty() {
            return Err(ParseDsnError::Project);
        }
        Ok(Self {
            is_https,
            public_key: public_key.to_owned(),
            secret_key: secret_key.map(ToOwned::to_owned),
            host: host.to_ascii_lowercase(),
            port: port.filter(|port| *port != if is_https { 443 } else { 80 }),
            path: if prefix.is_empty() { "/".to_owned() } else { format!("/{prefix}/") },
            project: project.to_owned(),
        })
    }
}

/// Whether a text only has characters that are valid in a header and in a URL.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte))
}

/// Whether the text has the characters of a name or an IPv4 address, or is an IPv6 address in
/// brackets.
fn is_host(text: &str) -> bool {
    match text.strip_prefix('[') {
        Some(address) => address.strip_suffix(']').is_some_and(|address| address.parse::<std::net::Ipv6Addr>().is_ok()),
        None => !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)),
    }
}

/// Writes the DSN with its keys, so that it can be parsed again.
impl fmt::Display for Dsn {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secret = self.secret_key.as_deref().map(|secret| format!(":{secret}")).unwrap_or_default();
        let Self { public_key, path, project, .. } = self;
        write!(out, "{}://{public_key}{secret}@{}{path}{project}", self.scheme(), self.authority())
    }
}

/// Writes the DSN without its keys.
impl fmt::Debug for Dsn {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Dsn({}://{}{}{})", self.scheme(), self.authority(), self.path, self.project)
    }
}

#[cfg(test)]
mod tests;
