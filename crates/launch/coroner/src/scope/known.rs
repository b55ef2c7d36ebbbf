//! Rejects tags and contexts that a server would drop later.
//!
//! Fields and types are from Relay's event schema (`relay-event-schema`, `protocol::contexts`). The
//! reserved tags are those that Relay removes from an event (`normalize_event_tags`), because an
//! event field has the same meaning.

use serde_json::Value;

use super::ScopeError;

#[derive(Clone, Copy)]
enum Type {
    Text,
    Number,
    Boolean,
    /// This number of hexadecimal digits.
    Hex(usize),
    List,
}

impl Type {
    fn takes(self, value: &Value) -> bool {
        match (self, value) {
            (_, Value::Null)
            | (Self::Boolean, Value::Bool(_))
            | (Self::List, Value::Array(_))
            | (Self::Text, Value::String(_)) => true,
            (Self::Number, Value::Number(number)) => number.is_u64(),
            (Self::Hex(digits), Value::String(text)) => {
                text.len() == digits
                    && text.bytes().all(|digit| digit.is_ascii_hexdigit())
                    && text.bytes().any(|digit| digit != b'0')
            }
            _ => false,
        }
    }
}

type Fields = [(Type, &'static [&'static str])];

/// Contexts by name, with their fields by type.
const CONTEXTS: [(&str, &Fields); 10] = [
    (
        "app",
        &[
            (
                Type::Text,
                &["app_start_time", "device_app_hash", "build_type", "app_identifier", "app_name", "app_version"],
            ),
            (Type::Text, &["app_build"]),
            (Type::Number, &["app_memory"]),
            (Type::Boolean, &["in_foreground"]),
            (Type::List, &["view_names"]),
        ],
    ),
    ("browser", &[(Type::Text, &["name", "version"])]),
    (
        "culture",
        &[(Type::Text, &["calendar", "display_name", "locale", "timezone"]), (Type::Boolean, &["is_24_hour_format"])],
    ),
    (
        "device",
        &[
            (Type::Text, &["name", "family", "model", "model_id", "arch", "orientation", "manufacturer", "brand"]),
            (Type::Text, &["boot_time", "timezone", "cpu_description", "device_type", "locale"]),
            (Type::Number, &["memory_size", "free_memory", "usable_memory", "storage_size", "free_storage"]),
            (Type::Number, &["external_storage_size", "external_free_storage", "processor_count"]),
            (Type::Boolean, &["charging", "low_memory", "online", "simulator"]),
        ],
    ),
    ("flags", &[(Type::List, &["values"])]),
    (
        "gpu",
        &[
            (Type::Text, &["name", "version", "vendor_name", "vendor_id", "api_type", "npot_support"]),
            (Type::Number, &["memory_size", "max_texture_size"]),
            (Type::Boolean, &["multi_threaded_rendering"]),
        ],
    ),
    (
        "os",
        &[
            (Type::Text, &["name", "version", "build", "kernel_version", "raw_description", "distribution_name"]),
            (Type::Text, &["distribution_version"]),
            (Type::Boolean, &["rooted"]),
        ],
    ),
    ("response", &[(Type::Number, &["status_code", "body_size"])]),
    ("runtime", &[(Type::Text, &["name", "version", "build", "raw_description"])]),
    (
        "trace",
        &[
            (Type::Hex(32), &["trace_id"]),
            (Type::Hex(16), &["span_id", "parent_span_id"]),
            (Type::Text, &["op", "status", "origin"]),
        ],
    ),
];

/// Names of event fields, which can't be tags.
const RESERVED_TAGS: [&str; 6] = ["release", "dist", "user", "environment", "filename", "function"];

pub(super) fn check_tag(key: &str) -> Result<(), ScopeError> {
    if key.is_empty() || key.chars().any(|character| character.is_whitespace() || character.is_control()) {
        return Err(ScopeError::InvalidKey);
    }
    RESERVED_TAGS.iter().find(|reserved| **reserved == key).map_or(Ok(()), |key| Err(ScopeError::Reserved(key)))
}

pub(super) fn check_context(name: &str, value: &Value) -> Result<(), ScopeError> {
    let Some((name, fields)) = CONTEXTS.iter().find(|(known, _)| *known == name) else { return Ok(()) };
    let Value::Object(map) = value else { return Err(ScopeError::WrongType(name)) };
    let fields = fields.iter().flat_map(|(kind, names)| names.iter().map(move |name| (kind, *name)));
    for (kind, field) in fields {
        if map.get(field).is_some_and(|value| !kind.takes(value)) {
            return Err(ScopeError::WrongType(field));
        }
    }
    Ok(())
}
