//! The JSON Schema of reports, as it is published: whether a report's JSON is as it says.

use std::sync::LazyLock;

use anyhow::{Context, bail};
use jsonschema::Validator;
use serde_json::Value;

const SCHEMA: &str = include_str!("../../docs/report.schema.json");

/// The schema with nothing allowed that it does not name: a field that is not in it is none that was published.
static STRICT: LazyLock<Result<Validator, String>> = LazyLock::new(|| {
    let mut schema: Value = serde_json::from_str(SCHEMA).map_err(|error| error.to_string())?;
    forbid_others(&mut schema);
    jsonschema::validator_for(&schema).map_err(|error| error.to_string())
});

fn forbid_others(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            if map.get("properties").is_some_and(Value::is_object) && !map.contains_key("additionalProperties") {
                map.insert("additionalProperties".to_owned(), false.into());
            }
            map.values_mut().for_each(forbid_others);
        }
        Value::Array(items) => items.iter_mut().for_each(forbid_others),
        _ => {}
    }
}

/// Whether `json` is a report as `docs/report.schema.json` says, and has no field that it does not name.
///
/// # Errors
/// It is not: what, and where.
pub fn check(json: &str) -> anyhow::Result<()> {
    let strict = STRICT.as_ref().map_err(|error| anyhow::anyhow!("docs/report.schema.json: {error}"))?;
    let report: Value = serde_json::from_str(json).context("a report's JSON is none")?;
    let wrong: Vec<String> =
        strict.iter_errors(&report).take(5).map(|error| format!("{}: {error:.300}", error.instance_path())).collect();
    if !wrong.is_empty() {
        bail!("a report's JSON is not as docs/report.schema.json says:\n{}", wrong.join("\n"));
    }
    Ok(())
}
