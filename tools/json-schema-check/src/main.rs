//! Checks each `*.json` file of a folder against `docs/report.schema.json`.
//!
//! The schema is made strict: a report must not have a field that the schema does not name.
//!
//! ```text
//! CORONER_TEST_REPORTS=FOLDER cargo test -p coroner-tests -p coroner-cli
//! cargo run -p json-schema-check --features check -- [--json] FOLDER
//! ```
//!
//! Prints one line per file; with `--json`, a JSON object as the last line. Exits with 1 if a file
//! is not a report as the schema describes it, or if there are no files.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use jsonschema::Validator;
use serde_json::{Value, json};

const SCHEMA: &str = include_str!("../../../docs/report.schema.json");
/// Maximum number of errors printed per file.
const MAX_ERRORS: usize = 5;

/// Forbids all fields that the schema does not name.
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

fn strict_validator() -> anyhow::Result<Validator> {
    let mut schema: Value = serde_json::from_str(SCHEMA).context("docs/report.schema.json is not valid JSON")?;
    forbid_others(&mut schema);
    jsonschema::validator_for(&schema).map_err(|error| anyhow::anyhow!("docs/report.schema.json: {error}"))
}

/// Returns a file's errors; empty if it is a report as the schema describes.
fn errors(validator: &Validator, path: &Path) -> Vec<String> {
    let report = std::fs::read(path)
        .map_err(|error| format!("can't read the file: {error}"))
        .and_then(|bytes| serde_json::from_slice::<Value>(&bytes).map_err(|error| format!("not valid JSON: {error}")));
    match report {
        Ok(report) => {
            let errors = validator.iter_errors(&report).take(MAX_ERRORS);
            errors.map(|error| format!("{}: {error:.300}", error.instance_path())).collect()
        }
        Err(error) => vec![error],
    }
}

fn json_files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("can't read {}", folder.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    Ok(paths)
}

fn main() -> anyhow::Result<ExitCode> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let count = arguments.len();
    arguments.retain(|argument| argument != "--json");
    let as_json = arguments.len() < count;
    let [folder] = &arguments[..] else { bail!("usage: json-schema-check [--json] FOLDER") };
    let validator = strict_validator()?;
    let mut invalid = Vec::new();
    let paths = json_files(Path::new(folder))?;
    for path in &paths {
        let errors = errors(&validator, path);
        if errors.is_empty() {
            println!("ok {}", path.display());
        } else {
            println!("invalid {}: {}", path.display(), errors.join("; "));
            invalid.push(json!({"path": path, "errors": errors}));
        }
    }
    let passed = invalid.is_empty() && !paths.is_empty();
    if paths.is_empty() {
        println!("no reports in {folder}");
    }
    if as_json {
        println!("{}", json!({"passed": passed, "files": paths.len(), "invalid": invalid}));
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
