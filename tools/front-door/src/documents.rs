//! Code blocks of the documents, word for word, and the app files that include them.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail, ensure};

use toolbox::tools;

/// Returns the code at `place`, `FILE#HEADING:LANGUAGE` or `FILE#HEADING:LANGUAGE:N`.
///
/// It is the first or the Nth code block in that language under the heading.
///
/// # Errors
/// An error if there is none.
pub(super) fn code(place: &str) -> anyhow::Result<String> {
    let (file, rest) = place.split_once('#').with_context(|| format!("missing heading in {place}"))?;
    let text = fs::read_to_string(tools::workspace_root().join(file)).with_context(|| file.to_owned())?;
    let mut words = rest.split(':').rev().collect::<Vec<_>>();
    let number = match words.first().and_then(|word| word.parse::<usize>().ok()) {
        Some(number) => {
            words.remove(0);
            number
        }
        None => 1,
    };
    ensure!(words.len() >= 2, "missing language in {place}");
    let language = words.remove(0);
    let heading = words.into_iter().rev().collect::<Vec<_>>().join(":");
    find(&text, &heading, language, number).with_context(|| format!("no such code block: {place}"))
}

/// Returns the code under a heading of a Markdown text.
fn find(text: &str, heading: &str, language: &str, number: usize) -> Option<String> {
    let (mut here, mut fence, mut count) = (false, None::<(usize, bool)>, 0);
    let mut code = String::new();
    for line in text.lines() {
        let inner = line.trim_start();
        if let Some((indent, wanted)) = fence {
            if inner.starts_with("```") {
                if wanted {
                    return Some(code);
                }
                fence = None;
            } else if wanted {
                code.push_str(line.get(indent.min(line.len() - inner.len())..).unwrap_or_default());
                code.push('\n');
            }
        } else if let Some(printed) = inner.strip_prefix("```") {
            let is_language = printed.split(',').next() == Some(language);
            count += usize::from(here && is_language);
            fence = Some((line.len() - inner.len(), here && is_language && count == number));
        } else if line.starts_with('#') {
            here = line.trim_start_matches('#').trim() == heading;
        }
    }
    None
}

/// Copies the sample app `from` to `into`, replacing lines that name code in a document.
///
/// # Errors
/// An error if a file can't be read or written, or names missing code.
pub(super) fn fill(from: &Path, into: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(into)?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let path = entry?.path();
        let target = into.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            fill(&path, &target)?;
            continue;
        }
        let mut text = String::new();
        for line in fs::read_to_string(&path)?.split_inclusive('\n') {
            match line.trim_end().strip_prefix("{{").and_then(|line| line.strip_suffix("}}")) {
                Some(named) => text.push_str(&filled(named).with_context(|| path.display().to_string())?),
                None => text.push_str(line),
            }
        }
        fs::write(&target, text)?;
    }
    Ok(())
}

/// Returns the code that a line of a sample app names, with the app's own code in it.
fn filled(named: &str) -> anyhow::Result<String> {
    let Some((place, own)) = named.split_once('|') else { return code(named) };
    let code = code(place)?;
    let mut lines: Vec<&str> = code.lines().collect();
    if let Some(at) = lines.iter().rposition(|line| line.trim_start().starts_with("// ")) {
        lines[at] = own;
    } else if lines.last() == Some(&"}") {
        lines.insert(lines.len() - 1, own);
    } else {
        bail!("missing placeholder for the app's code in {place}");
    }
    Ok(lines.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# A\n```sh\none\n```\n## B: c\ntext\n```rust,no_run\nfn main() {\n    // The app.\n}\n```\n\n* item\n\n  ```sh\n  # two\n    three\n  ```\n```sh\nfour\n```\n";

    #[test]
    fn code_is_found_by_heading_language_and_number() {
        assert_eq!(find(TEXT, "A", "sh", 1).as_deref(), Some("one\n"));
        assert_eq!(find(TEXT, "B: c", "rust", 1).as_deref(), Some("fn main() {\n    // The app.\n}\n"));
        assert_eq!(find(TEXT, "B: c", "sh", 1).as_deref(), Some("# two\n  three\n"));
        assert_eq!(find(TEXT, "B: c", "sh", 2).as_deref(), Some("four\n"));
        assert_eq!(find(TEXT, "A", "rust", 1), None);
        assert_eq!(find(TEXT, "C", "sh", 1), None);
    }
}
