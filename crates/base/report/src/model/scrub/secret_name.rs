//! Names whose values are secrets.
//!
//! The words are those of Relay's `@password` rule (relay-pii, `PASSWORD_KEY_REGEX`), of
//! `DEFAULT_DENYLIST` in sentry-python's `scrubber.py`, and of `generic-api-key` in gitleaks'
//! `gitleaks.toml`. They are matched as whole parts at a name's end (`DB_PASSWORD`, `jwtSecret`,
//! `X-Auth-Token`), so that neither `author` nor `token_count` is one of them.

/// The form in which a value under a name is a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SecretName {
    /// A password: anything but a placeholder.
    Password,
    /// A key or token: anything but a placeholder, a small number or a state such as `expired`.
    Key,
    /// A one-time password: digits.
    Code,
    /// A word that also names other things: only what [looks like a secret](super::looks_secret).
    Ambiguous,
}

/// Ends of names of passwords, without separators. They also count within a part (`PGPASSWORD`).
const PASSWORDS: [&str; 6] = ["password", "passwd", "passphrase", "passcode", "passwort", "passwrd"];
/// Last parts of names of passwords, or second-last ones with a word before (`SMTP_PASS`).
const SHORT_PASSWORDS: [&str; 3] = ["pwd", "pw", "pass"];

/// Ends of names of keys, without separators.
const KEYS: [&str; 29] = [
    "accesskey",
    "accountkey",
    "apikey",
    "authkey",
    "clientkey",
    "connectsid",
    "cookie",
    "credential",
    "credentials",
    "deploykey",
    "encryptionkey",
    "functionskey",
    "licensekey",
    "masterkey",
    "privatekey",
    "privkey",
    "secret",
    "secretkey",
    "secretkeybase",
    "serverkey",
    "servicekey",
    "sessid",
    "sessionid",
    "sessionkey",
    "sharedkey",
    "signingkey",
    "storagekey",
    "subscriptionkey",
    "token",
];
/// Last parts of names of keys.
const SHORT_KEYS: [&str; 7] = ["authorization", "creds", "csrf", "jwt", "salt", "sid", "xsrf"];

const CODES: [&str; 5] = ["otp", "totp", "twofactor", "twofactorcode", "mfacode"];

const AMBIGUOUS: [&str; 4] = ["auth", "pass", "pw", "session"];

/// Last parts of names of URL parameters whose values are also secrets, such as those of signed
/// links (AWS, Google, Azure).
const PARAMETERS: [&str; 5] = ["auth", "sig", "signature", "ticket", "verifier"];

/// Last parts that don't change what a name means.
const ENDINGS: [&str; 15] = [
    "again",
    "b64",
    "base64",
    "confirm",
    "confirmation",
    "current",
    "hash",
    "hex",
    "new",
    "old",
    "plain",
    "plaintext",
    "raw",
    "val",
    "value",
];

impl SecretName {
    /// Classifies a name; `None` if its value isn't a secret.
    pub(super) fn classify(name: &[u8]) -> Option<(Self, Parts)> {
        let mut parts = parts(name);
        while parts.len() > 1 && parts.last().is_some_and(|last| ENDINGS.contains(&last.as_str())) {
            parts.pop();
        }
        let last = parts.last()?.as_str();
        let joined = parts.concat();
        let count = if parts.len() > 1 { Parts::Several } else { Parts::One };
        let ends = |words: &[&str]| words.iter().any(|word| joined.ends_with(word));
        let kind = if ends(&PASSWORDS) || last == "pwd" || (parts.len() > 1 && SHORT_PASSWORDS.contains(&last)) {
            Self::Password
        } else if ends(&KEYS) || SHORT_KEYS.contains(&last) {
            Self::Key
        } else if CODES.iter().any(|code| joined == *code || last == *code) {
            Self::Code
        } else if AMBIGUOUS.contains(&last) {
            Self::Ambiguous
        } else {
            return None;
        };
        Some((kind, count))
    }
}

/// Whether a URL parameter is a secret by its name alone.
pub(super) fn is_secret_parameter(name: &[u8]) -> bool {
    parts(name).last().is_some_and(|last| PARAMETERS.contains(&last.as_str()))
}

/// Whether a name has one part, and may be a word of a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parts {
    One,
    Several,
}

/// Splits a name at its separators and where a capital letter follows a small one, and omits
/// numbers.
fn parts(name: &[u8]) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut before = b' ';
    for byte in name.iter().copied() {
        let is_new = !byte.is_ascii_alphanumeric() || (before.is_ascii_lowercase() && byte.is_ascii_uppercase());
        if is_new {
            parts.push(String::new());
        }
        if let Some(part) = parts.last_mut().filter(|_| byte.is_ascii_alphanumeric()) {
            part.push(byte.to_ascii_lowercase().into());
        }
        before = byte;
    }
    for part in &mut parts {
        if !ENDINGS.contains(&part.as_str()) {
            part.truncate(part.trim_end_matches(|character: char| character.is_ascii_digit()).len());
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}
