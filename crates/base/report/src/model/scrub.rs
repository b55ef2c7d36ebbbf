//! Removes secrets from a report's texts before they leave the machine.
//!
//! [`hide_secrets`] hides only what has the form of a secret, so that nothing is lost that a
//! developer needs; only the app knows what else is private. Scrubbed texts are those written by
//! apps and their libraries: tags, user, contexts, extra, breadcrumbs, crash and exception
//! messages, annotations. Stack memory is not text and is not changed.

use std::ops::Range;

mod secret_name;

use super::{Report, RunFacts, Value};
use coroner_process::heap_sort;
use secret_name::{Parts, SecretName, is_secret_parameter};

const HIDDEN: &str = "[Filtered]";

/// Returns the replacement for a text, or `None` to keep it.
///
/// The arguments are the key, such as a tag's (empty if there is none), and the text.
pub type Scrub<'a> = &'a dyn Fn(&str, &str) -> Option<String>;

/// Prefixes of well-known services' tokens, with their minimum length in characters (gitleaks'
/// `gitleaks.toml`).
const TOKENS: [(&str, usize); 93] = [
    ("ABIA", 20),
    ("ABSK", 100),
    ("ACCA", 20),
    ("AGE-SECRET-KEY-1", 60),
    ("AIza", 39),
    ("AKCp", 70),
    ("AKIA", 20),
    ("ASIA", 20),
    ("ATATT3", 60),
    ("CLOJARS_", 60),
    ("EAAA", 26),
    ("EZAK", 58),
    ("EZTK", 58),
    ("FLWSECK", 20),
    ("GR1348941", 29),
    ("HRKU-AA", 60),
    ("LTAI", 24),
    ("PMAK-", 60),
    ("SG.", 40),
    ("api_org_", 40),
    ("bedrock-api-key-", 30),
    ("dapi", 36),
    ("doo_v1_", 60),
    ("dop_v1_", 60),
    ("dor_v1_", 60),
    ("dp.pt.", 40),
    ("dt0c01.", 60),
    ("duffel_live_", 40),
    ("duffel_test_", 40),
    ("fio-u-", 60),
    ("fm1a_", 60),
    ("fm1r_", 60),
    ("fm2_", 60),
    ("fo1_", 40),
    ("ghp_", 36),
    ("gho_", 36),
    ("ghr_", 36),
    ("ghs_", 36),
    ("ghu_", 36),
    ("github_pat_", 40),
    ("glagent-", 40),
    ("glc_", 36),
    ("glcbt-", 26),
    ("gldt-", 25),
    ("glffct-", 26),
    ("glft-", 25),
    ("glimt-", 31),
    ("gloas-", 60),
    ("glpat-", 26),
    ("glptt-", 40),
    ("glrt-", 25),
    ("glsa_", 40),
    ("glsoat-", 27),
    ("hf_", 37),
    ("hvb.", 100),
    ("hvs.", 60),
    ("ico-", 36),
    ("lin_api_", 48),
    ("npm_", 40),
    ("ntn_", 40),
    ("ops_eyJ", 100),
    ("p8e-", 36),
    ("pnu_", 40),
    ("pplx-", 50),
    ("pscale_", 40),
    ("pul-", 44),
    ("pypi-", 60),
    ("rdme_", 70),
    ("rk_live_", 20),
    ("rk_test_", 20),
    ("rubygems_", 50),
    ("sgp_", 44),
    ("shippo_live_", 50),
    ("shippo_test_", 50),
    ("shpat_", 36),
    ("shpca_", 36),
    ("shppa_", 36),
    ("shpss_", 36),
    ("sk-", 32),
    ("sk_live_", 20),
    ("sk_test_", 20),
    ("sm_aat_", 23),
    ("sm_pat_", 23),
    ("sm_sat_", 23),
    ("sntry", 30),
    ("sq0atp-", 26),
    ("sq0csp-", 40),
    ("tk-us-", 50),
    ("v1.0-", 100),
    ("whsec_", 32),
    ("xapp-", 20),
    ("xkeysib-", 60),
    ("xox", 24),
];

/// Values under the names of keys that are not secrets.
const STATES: [&str; 26] = [
    "absent",
    "denied",
    "empty",
    "expired",
    "failed",
    "false",
    "hidden",
    "invalid",
    "missing",
    "nil",
    "no",
    "none",
    "null",
    "off",
    "ok",
    "on",
    "optional",
    "redacted",
    "required",
    "revoked",
    "true",
    "undefined",
    "unset",
    "valid",
    "wrong",
    "yes",
];

/// Hides secrets in a text stored under `key`; `None` if there are none.
///
/// Hides the user information of URLs and the tokens and signatures in their queries (`?token=…`),
/// `Authorization` headers and cookies, passwords and keys by their name (`DB_PASSWORD=…`,
/// `"jwtSecret": "…"`, `X-Auth-Token: …`), tokens by their form (JSON Web Tokens, those of GitHub,
/// GitLab, Slack, AWS and others), and private keys in PEM. A sentence such as
/// `password: wrong` stays as it is.
///
/// ```
/// let hidden = coroner_report::model::hide_secrets("", "GET https://ada:lovelace@example.com/?q=1");
/// assert_eq!(hidden.as_deref(), Some("GET https://[Filtered]@example.com/?q=1"));
/// ```
pub fn hide_secrets(key: &str, text: &str) -> Option<String> {
    if SecretName::classify(key.as_bytes()).is_some_and(|(name, _)| is_value(name, text, true)) {
        return Some(HIDDEN.to_owned());
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

/// Whether `value` is a secret under a name of this kind. `is_field` if the name and value are a
/// field's, and not words of a text.
fn is_value(name: SecretName, value: &str, is_field: bool) -> bool {
    let value = value.trim();
    let is_number = || value.bytes().all(|byte| byte.is_ascii_digit());
    match name {
        _ if is_placeholder(value) => false,
        SecretName::Password => is_field || !matches!(value, "true" | "false" | "null" | "none" | "nil" | "None"),
        SecretName::Key => !(is_state(value) || is_number() && value.len() < 6),
        SecretName::Code => is_number() && (4..=8).contains(&value.len()),
        SecretName::Ambiguous => looks_secret(value),
    }
}

/// Whether a value stands for another one (`${PASSWORD}`, `%s`, `{}`, `<hidden>`, `***`, a path),
/// or is hidden already.
fn is_placeholder(value: &str) -> bool {
    let variable = |name: &str| name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
    value.bytes().all(|byte| b"*.?!-".contains(&byte))
        || (value.len() > 2 && value.bytes().all(|byte| b"xX".contains(&byte)))
        || value.starts_with(HIDDEN)
        || value.starts_with(['%', '<', '{', '(', '['])
        || (value.starts_with('/') && value.matches('/').count() > 1)
        || value.strip_prefix('$').is_some_and(|name| name.starts_with(['{', '(']) || variable(name))
}

/// Whether a word has the form of a generated secret or of a careful password: letters together
/// with digits or marks, or many letters.
fn looks_secret(value: &str) -> bool {
    let has = |what: fn(&u8) -> bool| value.as_bytes().iter().any(what);
    let has_marks = has(u8::is_ascii_digit) || value.bytes().any(|byte| b"!@#$%^&*+=~".contains(&byte));
    let is_word = || has(u8::is_ascii_lowercase) && has(u8::is_ascii_uppercase) && !value.contains('_');
    let is_place = value.starts_with(['/', '.', '~']) || value.starts_with("0x") || value.contains("::");
    let is_place = is_place || value.contains('(');
    value.len() >= 6
        && has(u8::is_ascii_alphabetic)
        && !value.contains(char::is_whitespace)
        && !is_place
        && (has_marks || (value.len() >= 20 && is_word()))
}

/// Finds `scheme://USER:PASSWORD@host` (RFC 3986, section 3.2.1).
fn user_info(text: &str, found: &mut Vec<Range<usize>>) {
    for (at, mark) in text.match_indices("://") {
        let start = at + mark.len();
        let authority = text[start..].split(|other: char| "/?#\"'<>\\".contains(other) || other.is_whitespace()).next();
        found.extend(authority.and_then(|authority| authority.rfind('@')).map(|length| start..start + length));
    }
    // `curl -u USER:PASSWORD`
    for option in [" -u ", " --user "] {
        for (at, _) in text.match_indices(option).filter(|_| text.contains("curl")) {
            let user = word(text, at + option.len(), b"");
            found.extend(text[user.clone()].find(':').map(|length| user.start + length + 1..user.end));
        }
    }
    // `USER:PASSWORD@tcp(host)` of Go's MySQL driver.
    for (at, _) in text.match_indices("@tcp(").chain(text.match_indices("@unix(")) {
        let start = text[..at].rfind(|other: char| "\"'=".contains(other) || other.is_whitespace());
        found.push(start.map_or(0, |start| start + 1)..at);
    }
}

/// Finds `?token=VALUE` and `&token=VALUE` (RFC 3986, section 3.4), also after `;`.
fn parameters(text: &str, found: &mut Vec<Range<usize>>) {
    for (at, _) in text.match_indices(['?', '&', ';']) {
        let rest = &text[at + 1..];
        let end = |from: &str| {
            from.find(|other: char| "&#\"'<>\\;".contains(other) || other.is_whitespace()).unwrap_or(from.len())
        };
        let Some((name, value)) = rest[..end(rest)].split_once('=') else { continue };
        let is_secret = match SecretName::classify(name.as_bytes()) {
            _ if is_secret_parameter(name.as_bytes()) => true,
            Some((kind, _)) => is_value(kind, value, false),
            None => name.eq_ignore_ascii_case("key") && looks_secret(value) && value.len() >= 20,
        };
        if is_secret {
            let start = at + 1 + name.len() + 1;
            found.push(start..start + value.len());
        }
    }
}

/// Finds private keys in PEM (RFC 7468) and OpenPGP's form; a truncated one extends to the end of
/// the text.
fn private_keys(text: &str, found: &mut Vec<Range<usize>>) {
    for (at, begin) in text.match_indices("-----BEGIN ") {
        let label = text[at + begin.len()..].split("-----").next().unwrap_or_default();
        if label.contains("PRIVATE KEY") {
            let start = at + begin.len() + label.len();
            let end = text[start..].find("-----END").map_or(text.len(), |length| start + length);
            found.push(start.saturating_add(5).min(end)..end);
        }
    }
}

/// Finds values after their names, if the text between is that of an assignment, of a field in
/// JSON, YAML, XML, or of a header.
fn named(text: &str, found: &mut Vec<Range<usize>>) {
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        let length = bytes[at..].iter().take_while(|byte| is_name(byte)).count();
        at += length.max(1);
        if length == 0 {
            continue;
        }
        let name = &bytes[start..start + length];
        let Some((kind, parts)) = SecretName::classify(name).or_else(|| key_of_two_words(text, start, name)) else {
            continue;
        };
        let place = Name { kind, parts, start, end: start + length };
        if let Some(value) = place.value_in(text) {
            at = value.end.max(at);
            found.push(value);
        }
    }
}

/// A secret's name in a text.
struct Name {
    kind: SecretName,
    parts: Parts,
    start: usize,
    end: usize,
}

impl Name {
    /// Finds the range of the name's value.
    fn value_in(&self, text: &str) -> Option<Range<usize>> {
        let bytes = text.as_bytes();
        let count = |from: usize, set: &[u8]| bytes[from..].iter().take_while(|byte| set.contains(byte)).count();
        let name = &text[self.start..self.end];
        let before = self.start.checked_sub(1).map(|before| bytes[before]);
        // The quote that ends the name, possibly after backslashes for JSON in JSON.
        let quote = self.end + count(self.end, b"\\");
        let is_quoted = bytes.get(quote).is_some_and(|byte| b"\"'`".contains(byte));
        let mark = quote + usize::from(is_quoted);
        // `parameters` finds it.
        if before.is_some_and(|before| b"?&".contains(&before)) && bytes.get(self.end) == Some(&b'=') {
            return None;
        }
        // `<password>…</password>`
        if before == Some(b'<') && bytes.get(self.end) == Some(&b'>') {
            let value = self.end + 1..self.end + 1 + text[self.end + 1..].find('<')?;
            return is_value(self.kind, &text[value.clone()], true).then_some(value);
        }
        // `--password …`
        if name.starts_with("--") && bytes.get(self.end) == Some(&b' ') {
            let value = word(text, self.end + 1, b"\"'");
            return (!text[value.clone()].starts_with('-') && is_value(self.kind, &text[value.clone()], true))
                .then_some(value);
        }
        let separator = mark + count(mark, b" \t");
        let is_tight = separator == mark;
        let mut value = separator + count(separator, b":=>").min(2);
        // `"name": "password", "value": "…"`, and a list's next item.
        if value == separator {
            if !is_quoted && self.kind == SecretName::Password {
                return password_after(text, separator);
            }
            let rest = text.get(separator..).filter(|_| is_quoted)?;
            let next = rest.trim_start_matches([',', ' ', '"', '\'', '\\']);
            let named = next.strip_prefix("value").or_else(|| next.strip_prefix("Value"));
            let is_item = named.is_none() && rest.starts_with(',') && looks_secret(next.split(['"', '\'']).next()?);
            let next = named.map_or(next, |named| named.trim_start_matches(['"', '\'', '\\', ' ', ':', '=']));
            let start = text.len() - next.len();
            let value = start..start + next.find(['"', '\'', '\\', '<'])?;
            return ((named.is_some() || is_item) && is_value(self.kind, &text[value.clone()], true)).then_some(value);
        }
        let is_assignment = text[separator..value].contains('=');
        let gap = count(value, b"\\ \t");
        let is_tight = is_tight && gap == 0;
        value += gap;
        // Rust's `Some("…")`.
        value += if text[value..].starts_with("Some(") { "Some(".len() } else { 0 };
        value += count(value, b"\\");
        if let Some(quote) = bytes.get(value).filter(|byte| b"\"'`".contains(byte)) {
            let start = value + 1;
            let end =
                bytes[start..].iter().position(|byte| byte == quote || *byte == b'\\').unwrap_or(bytes.len() - start);
            let content = &text[start..start + end];
            let is_short = self.kind != SecretName::Password && content.len() < 3;
            let is_prose = !is_quoted && !is_assignment && (is_short || is_sentence(content));
            return (!is_prose && is_value(self.kind, content, true)).then_some(start..start + end);
        }
        let header = name.rsplit('-').next().unwrap_or_default();
        if header.eq_ignore_ascii_case("authorization") || header.eq_ignore_ascii_case("cookie") {
            let line = value..value + bytes[value..].iter().take_while(|byte| !b"\r\n\"'\\".contains(byte)).count();
            let (content, first) = (&text[line.clone()], text[line.clone()].split(' ').next().unwrap_or_default());
            let is_scheme = SCHEMES.iter().any(|scheme| first.eq_ignore_ascii_case(scheme)) && content != first;
            return (is_scheme || content.contains('=') || looks_secret(first)).then_some(line);
        }
        let value = word(text, value, b"&;,\"'`\\<>)}]");
        let content = &text[value.clone()];
        let is_secret = match (is_assignment, self.parts) {
            // `password: wrong` is a sentence, and so is `password = ?`.
            (false, Parts::One) => looks_secret(content),
            (true, Parts::One) if !is_tight && self.kind != SecretName::Password => looks_secret(content),
            (false, Parts::Several) => !is_state(content) && is_value(self.kind, content, false),
            (true, _) => is_value(self.kind, content, false),
        };
        is_secret.then_some(value)
    }
}

/// Finds the password in `password is …` and `password '…'`.
fn password_after(text: &str, start: usize) -> Option<Range<usize>> {
    let rest = &text[start..];
    let next = ["is ", "was ", "\"", "'", "`"].iter().find_map(|before| rest.strip_prefix(before))?;
    let value = word(text, text.len() - next.len(), b"\"'`,;");
    let content = &text[value.clone()];
    let length = content.trim_end_matches(['.', '!', '?']).len();
    looks_secret(&content[..length]).then_some(value.start..value.start + length)
}

/// Whether the name is the second word of `API key` and the like.
fn key_of_two_words(text: &str, start: usize, name: &[u8]) -> Option<(SecretName, Parts)> {
    const BEFORE: [&str; 6] = ["access", "api", "auth", "encryption", "private", "secret"];
    let before = text[..start].strip_suffix(' ').filter(|_| name.eq_ignore_ascii_case(b"key"))?;
    let before = before.rsplit(|character: char| !character.is_ascii_alphabetic()).next()?;
    BEFORE.iter().any(|word| before.eq_ignore_ascii_case(word)).then_some((SecretName::Key, Parts::One))
}

/// Schemes of `Authorization` (IANA's registry), and those of services.
const SCHEMES: [&str; 12] = [
    "apikey",
    "aws4-hmac-sha256",
    "basic",
    "bearer",
    "digest",
    "dpop",
    "hawk",
    "key",
    "negotiate",
    "ntlm",
    "sentry",
    "token",
];

/// Returns the range of the word that begins at `start`.
fn word(text: &str, start: usize, ends: &[u8]) -> Range<usize> {
    let is_inside = |byte: &&u8| !byte.is_ascii_whitespace() && !ends.contains(byte);
    start..start + text.as_bytes()[start..].iter().take_while(is_inside).count()
}

fn is_state(value: &str) -> bool {
    STATES.iter().any(|state| value.eq_ignore_ascii_case(state))
}

/// Whether a quoted text after a name is about the name's value.
fn is_sentence(text: &str) -> bool {
    const FIRST: [&str; 12] =
        ["can", "can't", "cannot", "field", "invalid", "is", "may", "missing", "must", "not", "should", "too"];
    let first = text.split(' ').next().unwrap_or_default();
    text.contains(' ') && FIRST.iter().any(|word| first.eq_ignore_ascii_case(word))
}

/// Finds words that have the form of tokens, words after `Bearer` and `Basic`, and addresses that
/// contain a secret.
fn tokens(text: &str, found: &mut Vec<Range<usize>>) {
    for address in ["hooks.slack.com/services/", "hooks.slack.com/workflows/", "discord.com/api/webhooks/"] {
        for (at, _) in text.match_indices(address) {
            found.push(word(text, at + address.len(), b"\"'`<>)"));
        }
    }
    let is_inside = |character: char| character.is_ascii_alphanumeric() || "_-.".contains(character);
    let mut before = "";
    for word in text.split(|character| !is_inside(character)) {
        let start = word.as_ptr() as usize - text.as_ptr() as usize;
        // The word may be followed by a sentence's full stop.
        let word = word.trim_end_matches('.');
        let known = TOKENS.iter().any(|(begin, least)| word.starts_with(begin) && word.len() >= *least);
        // RFC 7519: three parts, the first of which begins like `{"` in base64.
        let is_web_token = word.starts_with("eyJ") && word.len() >= 32 && word.split('.').count() >= 3;
        let has_digit = word.bytes().any(|byte| byte.is_ascii_digit());
        let is_bearer = before.eq_ignore_ascii_case("bearer") && word.len() >= 16 && has_digit;
        let is_basic = before.eq_ignore_ascii_case("basic") && word.len() >= 8 && looks_secret(word);
        if known || is_web_token || is_bearer || is_basic {
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
