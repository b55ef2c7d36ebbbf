//! The scope set by the app: user, tags, extra data, fingerprint, breadcrumbs.

use coroner_report::model::{Breadcrumb as Left, RunFacts};
use sentry_types::protocol::v7::{Breadcrumb, Map, User};
use serde_json::Value;

use super::{Event, micros};

/// Maximum length of a tag's key that servers accept, in characters.
const MAX_TAG_KEY: usize = 200;
/// Maximum length of a tag's value that servers accept, in characters.
const MAX_TAG: usize = 200;

/// User fields defined by the protocol that are strings without a field in `sentry-types`.
const USER: [&str; 2] = ["name", "segment"];

pub(super) fn add(event: &mut Event, run: &RunFacts) {
    for (key, value) in &run.tags {
        if let Some((key, value)) = tag(key, value) {
            event.tags.insert(key, value);
        }
    }
    event.transaction = event.tags.remove("transaction");
    event.user = run.user.as_ref().map(|user| self::user(user.to_json())).filter(|user| *user != User::default());
    event.extra = run.extra.iter().map(|(key, value)| (key.clone(), value.to_json())).collect();
    if !run.fingerprint.is_empty() {
        event.fingerprint = run.fingerprint.iter().cloned().map(Into::into).collect();
    }
    event.breadcrumbs = run.breadcrumbs.iter().map(breadcrumb).collect();
}

/// Converts a tag to what servers accept.
///
/// Keys have letters, digits, `_`, `.`, `:` and `-`; values have a single line.
fn tag(key: &str, value: &str) -> Option<(String, String)> {
    let allowed = |character: char| character.is_ascii_alphanumeric() || "_.:-".contains(character);
    let key: String = key.chars().map(|character| if allowed(character) { character } else { '_' }).collect();
    let key: String = key.chars().take(MAX_TAG_KEY).collect();
    let value = value.replace(['\n', '\r'], " ");
    let value: String = value.trim().chars().take(MAX_TAG).collect();
    (!key.is_empty() && !value.is_empty()).then_some((key, value))
}

/// Converts a user to what servers accept: known fields as strings, all others below `data`.
fn user(value: Value) -> User {
    let mut user = User::default();
    let mut data = serde_json::Map::new();
    for (key, value) in value.as_object().cloned().unwrap_or_default() {
        let text = match &value {
            Value::String(text) if !text.is_empty() => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        };
        let address = || text.as_ref().and_then(|text| text.parse().ok());
        match (key.as_str(), value) {
            (_, Value::Null) => {}
            ("id", _) if text.is_some() => user.id = text,
            ("username", _) if text.is_some() => user.username = text,
            ("email", _) if text.is_some() => user.email = text,
            ("ip_address", _) if address().is_some() => user.ip_address = address(),
            (known, _) if USER.contains(&known) && text.is_some() => {
                user.other.extend(text.map(|text| (key, text.into())));
            }
            ("data", Value::Object(more)) => data.extend(more),
            (_, value) => drop(data.insert(key, value)),
        }
    }
    if !data.is_empty() {
        user.other.insert("data".to_owned(), data.into());
    }
    user
}

fn breadcrumb(left: &Left) -> Breadcrumb {
    let mut data = match left.data.as_ref().map(coroner_report::model::Value::to_json) {
        Some(Value::Object(data)) => data.into_iter().collect(),
        Some(other) if !other.is_null() => Map::from([("value".to_owned(), other)]),
        _ => Map::new(),
    };
    if left.repetitions > 0 {
        data.insert("times".to_owned(), (left.repetitions + 1).into());
    }
    Breadcrumb {
        timestamp: micros(left.time),
        ty: left.kind.clone().unwrap_or_else(|| "default".to_owned()),
        category: left.category.clone(),
        message: left.message.clone(),
        level: left.level.name().and_then(|level| level.parse().ok()).unwrap_or_default(),
        data,
    }
}
