//! Openings of doc comments, and lengths of comment lines, sentences and commit subjects.

use crate::Finding;
use crate::rules::Rule;

/// Returns a finding of a rule.
fn finding(rule: &Rule, line: usize, text: String) -> Finding {
    Finding { line, text, instead: rule.instead.clone(), rule: rule.name.clone() }
}

/// Returns the doc comment in a line of Rust.
fn doc_comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))
}

/// Returns the doc comments that open with one of the rule's words.
pub(crate) fn doc_openings(rule: &Rule, text: &str) -> Vec<Finding> {
    let (mut findings, mut is_inside) = (Vec::new(), false);
    for (number, line) in text.lines().enumerate() {
        let doc = doc_comment(line);
        if let Some(comment) = doc.filter(|_| !is_inside) {
            let first = comment.split_whitespace().next().unwrap_or_default();
            if rule.find.iter().any(|word| word == first) {
                findings.push(finding(rule, number + 1, comment.trim().to_owned()));
            }
        }
        is_inside = doc.is_some();
    }
    findings
}

/// Returns the comment lines with more columns than the rule allows.
pub(crate) fn comment_columns(rule: &Rule, text: &str) -> Vec<Finding> {
    let (mut findings, mut is_code) = (Vec::new(), false);
    for (number, line) in text.lines().enumerate() {
        let comment = line.trim_start();
        let is_comment = ["//", "/*", "* "].iter().any(|marker| comment.starts_with(marker));
        let comment = comment.trim_start_matches(['/', '!', '*']).trim_start();
        if is_comment && comment.starts_with("```") {
            is_code = !is_code;
        }
        is_code &= is_comment;
        let may_be_long = is_code || comment.starts_with('|') || comment.contains("://");
        let columns = line.chars().count();
        if is_comment && columns > rule.max && !may_be_long {
            findings.push(finding(rule, number + 1, format!("{columns} columns")));
        }
    }
    findings
}

/// Returns a finding if the sentences of a document have more words on average than the rule
/// allows.
///
/// Headings, tables, code and images are not counted. Inline code is one word.
pub(crate) fn sentence_words(rule: &Rule, text: &str) -> Vec<Finding> {
    let (mut words, mut sentences) = (0, 0);
    let (mut is_code, mut is_open) = (false, false);
    for line in text.lines() {
        let line = line.trim();
        let is_fence = line.starts_with("```");
        is_code ^= is_fence;
        let is_prose =
            !is_code && !is_fence && !line.is_empty() && !line.starts_with(['|', '#']) && !line.starts_with("![");
        let is_item = line.starts_with("* ")
            || line.starts_with("- ")
            || line.split_once(". ").is_some_and(|(number, _)| number.parse::<u8>().is_ok());
        if is_open && (!is_prose || is_item) {
            // The block has ended without a period.
            (sentences, is_open) = (sentences + 1, false);
        }
        if !is_prose {
            continue;
        }
        let prose: String =
            line.split('`').enumerate().map(|(part, text)| if part % 2 == 0 { text } else { "x" }).collect();
        let prose = without_link_targets(&prose);
        let items = prose.split_whitespace().filter(|word| word.contains(char::is_alphanumeric));
        for word in items {
            (words, is_open) = (words + 1, true);
            let end = word.trim_end_matches(['*', ')', '"']);
            if end.ends_with(['.', '!', '?']) || word.ends_with(['.', '!', '?']) {
                (sentences, is_open) = (sentences + 1, false);
            }
        }
    }
    sentences += usize::from(is_open);
    if words <= rule.max * sentences {
        return Vec::new();
    }
    // In tenths, because the number is for people.
    let tenths = words * 10 / sentences.max(1);
    vec![finding(rule, 1, format!("{}.{} words in a sentence on average", tenths / 10, tenths % 10))]
}

/// Removes the targets of Markdown links from a line.
fn without_link_targets(line: &str) -> String {
    let mut parts = line.split("](");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once(')').map_or(part, |(_, rest)| rest))
}

/// Returns a finding if a commit's subject has more columns than the rule allows.
pub(crate) fn subject_columns(rule: &Rule, subject: &str) -> Option<Finding> {
    let columns = subject.chars().count();
    (columns > rule.max).then(|| finding(rule, 1, format!("{columns} columns: {subject}")))
}
