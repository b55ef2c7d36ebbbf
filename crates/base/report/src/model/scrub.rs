//! Removes secrets from a report's texts before they leave the machine.
//!
//! [`hide_secrets`] hides only what has the form of a secret, so that nothing is lost that a
//! developer needs; only the app knows what else is private. Scrubbed texts are those written by
//! apps and their libraries: tags, user, contexts, extra, breadcrumbs, crash and exception
//! messages, annotations. Stack memory is not text and is not changed.

use std::ops::Range;

use super::{Report, RunFacts, Value};
use coroner_process::heap_sort;

const HIDDEN: &str = "[Filtered]";

/// Returns the replacement for a text, or `None` to keep it.
///
/// The arguments are the key, such as a tag's (empty if there is none), and the text.
pub type Scrub<'a> = &'a dyn Fn(&str, &str) -> Option<String>;

/// Keys whose values are secrets, in lower case and without `-` and `_`.
const KEYS: [&str; 16] = [
    "accesstoken",
    "apikey",
    "apitoken",
    "authorization",
    "authtoken",
    "clientsecret",
    "cookie",
    "passwd",
    "password",
    "privatekey",
    "proxyauthorization",
    "pwd",
    "refreshtoken",
    "secretkey",
    "setcookie",
    "xapikey",
];

/// URL query parameters whose values are also secrets, written as in [`KEYS`].
///
/// Includes those of signed links (AWS, Google, Azure).
const PARAMETERS: [&str; 11] = [
    "auth",
    "idtoken",
    "secret",
    "sessiontoken",
    "sig",
    "signature",
    "ticket",
    "token",
    "xamzsecuritytoken",
    "xamzsignature",
    "xgoogsignature",
];

/// Keys of tags, contexts and JSON fields whose values are also secrets, written as in [`KEYS`].
///
/// In prose these are ordinary words.
const FIELDS: [&str; 4] = ["idtoken", "secret", "sessiontoken", "token"];

/// Headers whose values extend to the end of the line.
const HEADERS: [&str; 5] = ["authorization", "cookie", "proxyauthorization", "setcookie", "xapikey"];

/// Prefixes of well-known services' tokens, with their minimum length in characters.
const TOKENS: [(&str, usize); 16] = [
    ("AIza", 39),
    ("AKIA", 20),
    ("ASIA", 20),
    ("SG.", 40),
    ("ghp_", 36),
    ("gho_", 36),
    ("ghr_", 36),
    ("ghs_", 36),
    ("github_pat_", 40),
    ("glpat-", 26),
    ("npm_", 40),
    ("rk_live_", 20),
    ("sk-", 32),
    ("sk_live_", 20),
    ("sntry", 30),
    ("xox", 24),
];

/// Hides secrets in a text stored under `key`; `None` if there are none.
///
/// Hides the user information of URLs and the tokens and signatures in their queries (`?token=…`),
/// `Authorization` headers and cookies, passwords and keys by their name (`password=…`), tokens by
/// their form (JSON Web Tokens, those of GitHub, GitLab, Slack, AWS and others), and private keys
/// in PEM.
///
/// ```
/// let hidden = coroner_report::model::hide_secrets("", "GET https://ada:lovelace@example.com/?q=1");
/// assert_eq!(hidden.as_deref(), Some("GET https://[Filtered]@example.com/?q=1"));
/// ```
pub fn hide_secrets(key: &str, text: &str) -> Option<String> {
    if is_one_of(&KEYS, key.as_bytes()) || is_one_of(&FIELDS, key.as_bytes()) {
        return (!text.is_empty()).then(|| HIDDEN.to_owned());
    }
    let mut found = Vec::new();
    user_info(text, &mut found);
    parameters(text, &mut found);
    private_keys(text, &mut found);
    named(text, &mut found);
    tokens(text, &mut found);
    found.retain(|range| !range.is_empty());
    heap_sort(&mut found, |first, second| first.start < second.start);
    let mut hidden = String::new();
    let mut end = 0;
    for range in &found {
        if range.start >= end {
            hidden.push_str(text.get(end..range.start)?);
            hidden.push_str(HIDDEN);
        }
        end = end.max(range.end);
    }
    (!found.is_empty()).then(|| hidden + text.get(end..).unwrap_or_default())
}

/// Whether `names` contains `name`, ignoring case, `-` and `_`.
fn is_one_of(names: &[&str], name: &[u8]) -> bool {
    let plain = || name.iter().filter(|byte| !b"-_".contains(byte)).map(u8::to_ascii_lowercase);
    names.iter().any(|other| plain().eq(other.bytes()))
}

/// Finds `scheme://USER:PASSWORD@host` (RFC 3986, section 3.2.1).
fn user_info(text: &str, found: &mut Vec<Range<usize>>) {
    for (at, mark) in text.match_indices("://") {
        let start = at + mark.len();
        let authority = text[start..].split(|other: char| "/?#\"'<>\\".contains(other) || other.is_whitespace()).next();
        found.extend(authority.and_then(|authority| authority.rfind('@')).map(|length| start..start + length));
    }
}

/// Finds `?token=VALUE` and `&token=VALUE` (RFC 3986, section 3.4).
fn parameters(text: &str, found: &mut Vec<Range<usize>>) {
    for (at, _) in text.match_indices(['?', '&']) {
        let rest = &text[at + 1..];
        let end = |from: &str| {
            from.find(|other: char| "&#\"'<>\\;".contains(other) || other.is_whitespace()).unwrap_or(from.len())
        };
        let Some((name, value)) = rest[..end(rest)].split_once('=') else { continue };
        if is_one_of(&PARAMETERS, name.as_bytes()) {
            let start = at + 1 + name.len() + 1;
            found.push(start..start + value.len());
        }
    }
}

/// Finds PEM private keys (RFC 7468); a truncated one extends to the end of the text.
fn private_keys(text: &str, found: &mut Vec<Range<usize>>) {
    for (at, begin) in text.match_indices("-----BEGIN ") {
        let label = text[at + begin.len()..].split("-----").next().unwrap_or_default();
        if label.ends_with("PRIVATE KEY") {
            let start = at + begin.len() + label.len();
            let end = text[start..].find("-----END").map_or(text.len(), |length| start + length);
            found.push(start.saturating_add(5).min(end)..end);
        }
    }
}

/// Finds values after their names.
///
/// `Authorization: …` extends to the end of the line, `password=…` to the end of the word,
/// `"password": "…"` to the quote.
fn named(text: &str, found: &mut Vec<Range<usize>>) {
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
    let bytes = text.as_bytes();
    let count = |from: usize, what: &dyn Fn(&u8) -> bool| bytes[from..].iter().take_while(|byte| what(byte)).count();
    let mut at = 0;
    while at < bytes.len() {
        let length = count(at, &is_name);
        let name = &bytes[at..at + length];
        at += length.max(1);
        let is_field = || {
            // The quote that ends the name, possibly after backslashes for JSON in JSON.
            let quote = at + count(at, &|byte| *byte == b'\\');
            bytes.get(quote) == Some(&b'"')
                && bytes[quote + 1..].trim_ascii_start().starts_with(b":")
                && is_one_of(&FIELDS, name)
        };
        if length == 0 || !(is_one_of(&KEYS, name) || is_field()) {
            continue;
        }
        // The quote that ends the name, possibly after a backslash for JSON in JSON.
        let mark = at + count(at, &|byte| b"\\\"' ".contains(byte));
        let Some(separator) = bytes.get(mark).filter(|byte| b":=".contains(byte)) else { continue };
        let mut start = mark + 1;
        start += count(start, &|byte| b"\\ \t".contains(byte));
        let quote = bytes.get(start).copied().filter(|byte| b"\"'".contains(byte));
        start += usize::from(quote.is_some());
        let end = start
            + match quote {
                Some(quote) => count(start, &|byte| *byte != quote && *byte != b'\\'),
                None if is_one_of(&HEADERS, name) => count(start, &|byte| !b"\r\n\"'\\".contains(byte)),
                // `password: wrong` is a sentence.
                None if *separator == b':' || start > mark + 1 => continue,
                None => count(start, &|byte| !byte.is_ascii_whitespace() && !b"&;,\"'\\".contains(byte)),
            };
        found.push(start..end);
        at = end;
    }
}

/// Finds words that have the form of tokens, and words after `Bearer`.
fn tokens(text: &str, found: &mut Vec<Range<usize>>) {
    let is_inside = |character: char| character.is_ascii_alphanumeric() || "_-.".contains(character);
    let mut before = "";
    for word in text.split(|character| !is_inside(character)) {
        let start = word.as_ptr() as usize - text.as_ptr() as usize;
        // The word may be followed by a sentence's full stop.
        let word = word.trim_end_matches('.');
        let known = TOKENS.iter().any(|(begin, least)| word.starts_with(begin) && word.len() >= *least);
        // RFC 7519: three parts, the first of which begins like `{"` in base64.
        let is_web_token = word.starts_with("eyJ") && word.len() >= 32 && word.split('.').count() == 3;
        let has_digit = word.bytes().any(|byte| byte.is_ascii_digit());
        let is_bearer = before.eq_ignore_ascii_case("bearer") && word.len() >= 16 && has_digit;
        if known || is_web_token || is_bearer {
            found.push(start..start + word.len());
        }
        if !word.is_empty() {
            before = word;
        }
    }
}

impl Report {
    /// Replaces the report's texts with the results of `scrub`.
    pub fn scrub(&mut self, scrub: Scrub<'_>) {
        let crash = self.crash.iter_mut().flat_map(|crash| &mut crash.message);
        let exceptions = self.exceptions.iter_mut();
        let exceptions = exceptions.flat_map(|exception| exception.message.iter_mut().chain(&mut exception.user_info));
        let annotations = self.annotations.iter_mut().map(|annotation| &mut annotation.text);
        let explained = self.explanation.iter_mut().flat_map(|explanation| {
            let super::Explanation { headline, waits_for, spent, facts, .. } = explanation;
            std::iter::once(headline).chain(waits_for).chain(spent).chain(facts)
        });
        let texts = crash.chain(exceptions).chain(annotations).chain(explained);
        texts.for_each(|text| replace("", text, scrub));
        if let Some(run) = &mut self.run {
            run.scrub(scrub);
        }
    }
}

impl RunFacts {
    /// Replaces the run state's texts with the results of `scrub`.
    pub fn scrub(&mut self, scrub: Scrub<'_>) {
        self.tags.iter_mut().for_each(|(key, text)| replace(key, text, scrub));
        self.fingerprint.iter_mut().for_each(|text| replace("", text, scrub));
        let named = self.contexts.iter_mut().chain(&mut self.extra);
        named.for_each(|(key, value)| replace_in(key, value, scrub));
        self.user.iter_mut().for_each(|user| replace_in("", user, scrub));
        for breadcrumb in &mut self.breadcrumbs {
            breadcrumb.message.iter_mut().for_each(|text| replace("", text, scrub));
            breadcrumb.data.iter_mut().for_each(|data| replace_in("", data, scrub));
        }
    }
}

fn replace(key: &str, text: &mut String, scrub: Scrub<'_>) {
    if let Some(other) = scrub(key, text) {
        *text = other;
    }
}

fn replace_in(key: &str, value: &mut Value, scrub: Scrub<'_>) {
    match value {
        Value::Text(text) => replace(key, text, scrub),
        Value::Array(items) => items.iter_mut().for_each(|item| replace_in(key, item, scrub)),
        Value::Map(entries) => {
            entries.iter_mut().for_each(|(key, value)| replace_in(key.as_str().unwrap_or_default(), value, scrub));
        }
        Value::Tag(_, inner) => replace_in(key, inner, scrub),
        _ => {}
    }
}

/// Replaces the home directory in a path, which would reveal the user's name, with `~`.
///
/// `/home/ada/app`, `/Users/ada/app` and `/root/app` become `~/app`; `C:\Users\ada\app.exe` becomes
/// `~\app.exe`.
pub fn hide_home(path: &mut String) {
    if let Some(rest) = path.strip_prefix("/root/") {
        *path = format!("~/{rest}");
        return;
    }
    let below_drive = path.get(1..).and_then(|rest| rest.strip_prefix(":\\Users\\"));
    if let Some((_, rest)) = below_drive.and_then(|below| below.split_once('\\')) {
        *path = format!("~\\{rest}");
        return;
    }
    for parent in ["/home/", "/Users/"] {
        if let Some((_, rest)) = path.strip_prefix(parent).and_then(|below| below.split_once('/')) {
            *path = format!("~/{rest}");
            return;
        }
    }
}
