//! The DSN: a project's address at a server, with its key: `https://KEY@HOST/PROJECT`.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use sentry_types::ParseDsnError as Error;

/// An error from parsing a [`Dsn`]. Its message doesn't contain the keys.
#[derive(Debug, thiserror::Error)]
#[error("{0}; expected https://KEY@HOST/PROJECT")]
pub struct ParseDsnError(#[from] Error);

/// A [`sentry_types::Dsn`] whose `Debug` output doesn't contain the keys.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Dsn(sentry_types::Dsn);

impl Deref for Dsn {
    type Target = sentry_types::Dsn;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl FromStr for Dsn {
    type Err = ParseDsnError;

    fn from_str(text: &str) -> Result<Self, ParseDsnError> {
        let text = text.trim();
        let dsn: sentry_types::Dsn = text.parse()?;
        // A URL may contain the following, but in a DSN it is a mistake: blanks and line breaks, a
        // key with an `@` or another character that a URL can't contain, port 0.
        if text.contains(|character: char| character.is_whitespace() || character.is_control()) || dsn.port() == 0 {
            return Err(Error::InvalidUrl.into());
        }
        if [Some(dsn.public_key()), dsn.secret_key()].into_iter().flatten().any(|key| key.contains('%')) {
            return Err(Error::NoUsername.into());
        }
        Ok(Self(dsn))
    }
}

/// Writes the DSN with its keys, so that it can be parsed again.
impl fmt::Display for Dsn {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `sentry-types` ends a key without a secret with a colon.
        out.write_str(&self.0.to_string().replacen(":@", "@", 1))
    }
}

/// Writes the DSN without its keys.
impl fmt::Debug for Dsn {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(dsn) = self;
        write!(out, "Dsn({}://{}:{}{}{})", dsn.scheme(), dsn.host(), dsn.port(), dsn.path(), dsn.project_id())
    }
}

#[cfg(test)]
mod tests;
