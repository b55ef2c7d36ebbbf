//! Every public error type of a `Result` implements `Error`, so that an app can use `?` and
//! `Box<dyn Error>` with it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Errors that a Rust app never sees: `coroner::InstallError` wraps the first with its text, and
/// the second is the C API's.
const INTERNAL: [&str; 2] = ["capture: InstallError", "ffi: Status"];

/// Returns the Rust sources below a folder.
fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of sources").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

/// Returns the name of the last argument of each `Result<…, NAME>` in a text.
fn errors_of_results(text: &str) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    for (at, _) in text.match_indices("Result<") {
        let arguments = &text[at + "Result<".len()..];
        let (mut depth, mut last) = (0_i32, None);
        for (at, character) in arguments.char_indices() {
            match character {
                // The arrow of a function type.
                '>' if arguments[..at].ends_with('-') => {}
                '<' | '(' | '[' => depth += 1,
                '>' if depth == 0 => {
                    let name = last.map(|last: usize| arguments[last..at].trim().trim_end_matches(','));
                    names.extend(name.and_then(|name| name.rsplit("::").next()));
                    break;
                }
                '>' | ')' | ']' => depth -= 1,
                ',' if depth == 0 && arguments[at + 1..].trim_start().starts_with('>') => {}
                ',' if depth == 0 => last = Some(at + 1),
                '{' | ';' => break,
                _ => {}
            }
        }
    }
    names
}

/// Returns the public types that a text declares, each with the text before it.
fn declared(text: &str) -> impl Iterator<Item = (&str, &str)> {
    ["pub enum ", "pub struct "].into_iter().flat_map(move |word| {
        text.match_indices(word).map(move |(at, _)| {
            let rest = &text[at + word.len()..];
            let end =
                rest.find(|character: char| !character.is_alphanumeric() && character != '_').unwrap_or(rest.len());
            // Its attributes and documentation.
            let before = text[..at].trim_end().rsplit("\n\n").next().unwrap_or_default();
            (&rest[..end], before)
        })
    })
}

#[test]
fn every_public_error_is_an_error() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let mut lacking = Vec::new();
    let mut seen = 0;
    let entries = |folder: &Path| std::fs::read_dir(folder).expect("a folder of crates").flatten();
    for folder in entries(&crates).flat_map(|group| entries(&group.path())) {
        let mut paths = Vec::new();
        sources(&folder.path().join("src"), &mut paths);
        let texts: Vec<String> = paths.iter().map(|path| std::fs::read_to_string(path).expect("a source")).collect();
        let errors: BTreeSet<&str> = texts.iter().flat_map(|text| errors_of_results(text)).collect();
        for (name, before) in texts.iter().flat_map(|text| declared(text)).filter(|(name, _)| errors.contains(name)) {
            seen += 1;
            let is_error = |text: &String| {
                text.contains(&format!("Error for {name} ")) || text.contains(&format!("Error for {name}<"))
            };
            if !before.contains("Error)]") && !before.contains("Error, ") && !texts.iter().any(is_error) {
                lacking.push(format!("{}: {name}", folder.file_name().display()));
            }
        }
    }
    assert!(seen > 20, "{seen} public errors were found: the search is broken");
    lacking.retain(|name| !INTERNAL.contains(&name.as_str()));
    assert!(lacking.is_empty(), "without `std::error::Error`: {lacking:?}");
}
