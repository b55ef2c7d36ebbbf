//! Links between documents, and names of source files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::Finding;

/// Returns a finding that no rule allows.
fn finding(line: usize, text: &str, instead: &str) -> Finding {
    Finding { line, text: text.to_owned(), instead: instead.to_owned(), rule: String::new() }
}

/// Returns links in the Markdown file `path` to missing files, and to missing headings.
pub(crate) fn broken(text: &str, path: &Path) -> Vec<Finding> {
    let folder = path.parent().unwrap_or(path);
    let mut findings = Vec::new();
    for (number, line) in text.lines().enumerate() {
        // Code contains no links.
        let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        for rest in prose.split("](").skip(1) {
            let link = rest.split(')').next().unwrap_or_default();
            let (target, heading) = link.split_once('#').unwrap_or((link, ""));
            if target.contains(':') {
                continue;
            }
            let file = if target.is_empty() { path.to_owned() } else { folder.join(target) };
            let mut broken = |instead| findings.push(finding(number + 1, link, instead));
            if !file.exists() {
                broken("the path of a file that exists");
            } else if !heading.is_empty() && file.extension().is_some_and(|end| end == "md") {
                let text = if target.is_empty() {
                    text.to_owned()
                } else {
                    std::fs::read_to_string(&file).unwrap_or_default()
                };
                if !anchors(&text).contains(heading) {
                    broken("a heading that the file has");
                }
            }
        }
    }
    findings
}

/// Returns the anchors of a text's headings, in the form of forges and mdBook.
fn anchors(text: &str) -> BTreeSet<String> {
    let (mut found, mut in_code) = (BTreeSet::new(), false);
    for line in text.lines() {
        in_code ^= line.trim_start().starts_with("```");
        if line.starts_with('#') && !in_code {
            let heading = line.trim_start_matches('#').trim().to_lowercase();
            let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            found.insert(kept.map(|c| if c == ' ' { '-' } else { c }).collect());
        }
    }
    found
}

/// Returns the documents that are missing in the book's list (`docs/SUMMARY.md`).
pub(crate) fn missing_in_book(summary: &str, files: &[PathBuf]) -> Vec<Finding> {
    let documents = files.iter().filter(|file| file.extension().is_some_and(|end| end == "md"));
    let documents = documents.filter_map(|file| file.strip_prefix("docs").ok()?.to_str());
    let documents = documents.filter(|name| *name != "SUMMARY.md");
    let missing = documents.filter(|name| !summary.contains(&format!("({name})")));
    missing.map(|name| finding(1, name, "a list of pages that has it")).collect()
}

/// Returns names of Rust sources in backquotes, with or without folders, that do not exist.
pub(crate) fn missing_sources(text: &str, exists: impl Fn(&str) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for source in line.split('`').skip(1).step_by(2) {
            let is_path = Path::new(source).extension().is_some_and(|end| end == "rs")
                && !source.contains(|c: char| c.is_whitespace() || "*{<$".contains(c));
            if is_path && !exists(source) {
                findings.push(finding(number + 1, source, "the name of a file that exists"));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolbox::tools;

    #[test]
    fn links_lead_to_files() {
        let here = tools::workspace_root();
        let text = "## It's `a::b`, too\n[a](README.md#quick-start) [b](https://example.com/x) [e](#its-ab-too) `f](g)`\n\
                    [c](no-such-file.md) [d](README.md#no-such-heading)";
        let found = broken(text, &here.join("CHANGELOG.md"));
        let found: Vec<_> = found.into_iter().map(|finding| (finding.line, finding.text)).collect();
        assert_eq!(found, [(3, "no-such-file.md".to_owned()), (3, "README.md#no-such-heading".to_owned())]);
    }

    #[test]
    fn the_book_has_each_document() {
        let files = ["docs/SUMMARY.md", "docs/a.md", "docs/b.md", "README.md"].map(PathBuf::from);
        let found = missing_in_book("* [A](a.md)", &files);
        assert_eq!(found.into_iter().map(|finding| finding.text).collect::<Vec<_>>(), ["b.md"]);
    }

    #[test]
    fn named_source_files_exist() {
        let text = "//! `linux/deadline.rs` and `a.rs b.rs`\n//! not `line.rs`";
        let findings = missing_sources(text, |source| source == "linux/deadline.rs");
        let found: Vec<_> = findings.into_iter().map(|finding| (finding.line, finding.text)).collect();
        assert_eq!(found, [(2, "line.rs".to_owned())]);
    }
}
