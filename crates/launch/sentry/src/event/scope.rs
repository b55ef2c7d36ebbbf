//! The scope set by the app: user, tags, extra data, fingerprint, breadcrumbs.

use coroner_report::model::{Breadcrumb as Left, RunFacts};
use serde_json::{Map, Value};

use super::{Breadcrumb, Event, time_text};

/// Maximum length of a tag's key that servers accept, in characters.
const MAX_TAG_KEY: usize = 200;
/// Maximum length of a tag's value that servers accept, in characters.
const MAX_TAG: usize = 200;

/// User fields defined by the protocol; all are strings.
const USER: [&str; 6] = ["id", "username", "email", "name", "ip_address", "segment"];

pub(super) fn add(event: &mut Event, run: &RunFacts) {
    for (key, value) in &run.tags {
        if let Some((key, value)) = tag(key, value) {
            event.tags.insert(key, value);
        }
    }
    event.transaction = event.tags.remove("transaction");
    event.user = run.user.as_ref().map(|user| self::user(user.to_json())).unwrap_or_default();
    event.extra = run.extra.iter().map(|(key, value)| (key.clone(), value.to_json())).collect();
    event.fingerprint.clone_from(&run.fingerprint);
    event.breadcrumbs = run.breadcrumbs.iter().map(breadcrumb).collect::<Vec<_>>().into();
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
fn user(value: Value) -> Map<String, Value> {
    let Value::Object(fields) = value else { return Map::new() };
    let mut user = Map::new();
    let mut data = Map::new();
    for (key, value) in fields {
        match (USER.contains(&key.as_str()), value) {
            (_, Value::Null) => {}
            (true, Value::String(text)) if !text.is_empty() => drop(user.insert(key, text.into())),
            (true, Value::Number(number)) => drop(user.insert(key, number.to_string().into())),
            (_, Value::Object(more)) if key == "data" => data.extend(more),
            (_, value) => drop(data.insert(key, value)),
        }
    }
    if !data.is_empty() {
        user.insert("data".to_owned(), data.into());
    }
    user
}

fn breadcrumb(left: &Left) -> Breadcrumb {
    let mut data = match left.data.as_ref().map(coroner_report::model::Value::to_json) {
        Some(Value::Object(data)) => data,
        Some(other) if !other.is_null() => Map::from_iter([("value".to_owned(), other)]),
        _ => Map::new(),
    };
    if left.repetitions > 0 {
        data.insert("times".to_owned(), (left.repetitions + 1).into());
    }
    Breadcrumb {
        timestamp: time_text(left.time),
        kind: left.kind.clone().unwrap_or_else(|| "default".to_owned()),
        category: left.category.clone(),
        message: left.message.clone(),
        level: left.level.name().map(ToOwned::to_owned),
        data,
    }
}
