//! Finds words that the style guide replaces, and broken links and source names.
//!
//! The words are in [`WORDS`]. See the package's `README.md`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Parser as _;

use toolbox::tools;

#[derive(Debug, clap::Parser)]
#[command(about)]
pub(crate) struct Arguments {
    /// Print one JSON object, a row per finding, as the last line
    #[arg(long)]
    json: bool,
}

/// Sequences of words, and their replacement.
///
/// `*` at the end of a word matches any ending. A word in lower case matches in any case; one with
/// a capital only as it is, and `MOST_*` matches any constant with that prefix.
const WORDS: &[(&str, &str)] = &[
    ("rendezvous", "stop-the-world"),
    ("latch*", "report lock"),
    ("incident*", "crash context"),
    ("Scratch", "workspace; in tests, a temporary file or folder"),
    ("machinery", "platform state, or the thing's name"),
    ("rehears*", "warm up"),
    ("make good", "recover (a guarded load)"),
    ("makes good", "recovers (a guarded load)"),
    ("made good", "recovered (a guarded load)"),
    ("own fault", "recrash"),
    ("Goes On", "non-fatal"),
    ("MOST_*", "MAX_*"),
    ("LONGEST*", "MAX_*"),
    ("SHORTEST*", "MIN_*"),
    ("most attachment", "max_attachment"),
    ("normal life", "while the app runs; not async-signal-safe"),
    ("nothing where", "`None` if; nothing if"),
    ("floors", "layers, lower bounds"),
    ("patience", "timeout"),
    ("witness*", "image stamp"),
    ("second crash", "concurrent crash, recrash"),
    ("second crashes", "concurrent crashes"),
    ("told", "notified, given, reported, distinguished"),
    ("hand in", "report, give (registers)"),
    ("handed in", "reported, given (registers)"),
    ("border*", "boundary"),
    ("worlds", "crash time and next launch"),
];

/// Legitimate uses: files (a path, or its beginning), an entry of [`WORDS`], and the reason.
const ALLOWED: &[(&str, &str, &str)] = &[
    (
        "crates/analysis/formats/src/apple_report/",
        "incident*",
        "a field of Apple's crash reports is called `Incident Identifier`",
    ),
    ("crates/analysis/formats/tests/it/apple_reports.rs", "incident*", "the same field"),
    ("crates/base/report/src/reader/mod.rs", "incident*", "by it Apple's crash reports are recognised"),
];

/// Extensions of the files to read: sources and docs.
const EXTENSIONS: &[&str] = &["rs", "md", "toml", "c", "cpp", "h", "cddl"];

/// Folders that contain none of our text.
const SKIPPED: &[&str] = &["target", "fixtures", "corpus", "expected"];

/// A use of a word, or a path that doesn't exist.
#[derive(Debug, PartialEq)]
struct Finding {
    line: usize,
    said: String,
    instead: &'static str,
    /// The entry of [`WORDS`]; empty for a path.
    word: &'static str,
}

/// Reads all sources and docs.
///
/// # Errors
/// An error for a finding, an unused exception, or an unreadable file.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let root = tools::workspace_root();
    let mut files = Vec::new();
    collect(&root, &root, &mut files)?;
    files.sort();
    let (mut rows, mut needed) = (Vec::new(), vec![false; ALLOWED.len()]);
    for file in &files {
        let name = file.to_string_lossy();
        if name == "tools/words/src/main.rs" {
            continue; // The list itself.
        }
        let path = root.join(file);
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let mut findings = uses(&text);
        findings.extend(missing_sources(&text, |said| {
            root.join(said).exists() || files.iter().any(|file| file.ends_with(said))
        }));
        if file.extension().is_some_and(|end| end == "md") {
            findings.extend(broken_links(&text, &path));
        }
        if name == "docs/SUMMARY.md" {
            findings.extend(missing_in_book(&text, &files));
        }
        for finding in findings {
            let allowed = ALLOWED.iter().position(|(place, word, _)| name.starts_with(place) && *word == finding.word);
            if let Some(entry) = allowed {
                needed[entry] = true;
                continue;
            }
            println!("{name}:{}: \"{}\": use {}", finding.line, finding.said, finding.instead);
            rows.push(serde_json::json!({ "file": name, "line": finding.line, "said": finding.said, "instead": finding.instead }));
        }
    }
    for ((place, word, _), _) in ALLOWED.iter().zip(&needed).filter(|(_, needed)| !**needed) {
        println!("tools/words/src/main.rs: unused exception: \"{word}\" in {place}");
        rows.push(
            serde_json::json!({ "file": "tools/words/src/main.rs", "said": word, "instead": "no exception: it is unused" }),
        );
    }
    println!("{} files, {} findings", files.len(), rows.len());
    let failed = rows.len();
    if arguments.json {
        println!("{}", serde_json::json!({ "tool": "words", "pass": failed == 0, "files": files.len(), "rows": rows }));
    }
    if failed > 0 {
        bail!("{failed} findings");
    }
    Ok(())
}

/// Collects the files to read below `folder`, by their paths from `root`.
fn collect(root: &Path, folder: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let kind = entry.file_type()?;
        if kind.is_dir() && !name.starts_with('.') && !name.starts_with("target-") && !SKIPPED.contains(&name.as_str())
        {
            collect(root, &path, files)?;
        } else if kind.is_file() && path.extension().is_some_and(|end| EXTENSIONS.iter().any(|known| end == *known)) {
            files.push(path.strip_prefix(root)?.to_owned());
        }
    }
    Ok(())
}

/// A word of the text: a part of an identifier, or a word of prose.
struct Token<'t> {
    line: usize,
    text: &'t str,
    /// Whether a `_` follows.
    underscore: bool,
    /// Whether only spaces, underscores and comment markers separate it from the previous word.
    follows: bool,
}

/// Splits a text into words, and identifiers at `_` and before capitals.
fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens: Vec<Token<'_>> = Vec::new();
    let (mut line, mut follows, mut start) = (1, true, None);
    let mut before = ' ';
    for (at, c) in text.char_indices().chain([(text.len(), '\n')]) {
        let new_word = c.is_uppercase() && before.is_lowercase();
        if let Some(begin) = start
            && (!c.is_alphanumeric() || new_word)
        {
            tokens.push(Token { line, text: &text[begin..at], underscore: c == '_', follows });
            (start, follows) = (None, true);
        }
        if c.is_alphanumeric() {
            start = start.or(Some(at));
        } else if !c.is_whitespace() && !matches!(c, '_' | '/' | '!' | '*' | '#' | '`') {
            follows = false;
        }
        line += usize::from(c == '\n');
        before = c;
    }
    tokens
}

/// Whether a word of the text matches an entry's word.
fn is(token: &Token<'_>, wanted: &str) -> bool {
    let (stem, any_end) = wanted.strip_suffix('*').map_or((wanted, false), |stem| (stem, true));
    if let Some(stem) = stem.strip_suffix('_') {
        return token.text == stem && token.underscore;
    }
    let same = |text: &str| if any_end { text.starts_with(stem) } else { text == stem };
    if stem.chars().any(char::is_uppercase) { same(token.text) } else { same(&token.text.to_lowercase()) }
}

/// Returns all uses of [`WORDS`] in a text.
fn uses(text: &str) -> Vec<Finding> {
    let tokens = tokens(text);
    let mut findings = Vec::new();
    for at in 0..tokens.len() {
        for &(word, instead) in WORDS {
            let parts: Vec<&str> = word.split(' ').collect();
            let Some(here) = tokens.get(at..at + parts.len()) else { continue };
            if here.iter().zip(&parts).all(|(token, part)| is(token, part))
                && here[1..].iter().all(|token| token.follows)
            {
                let said: Vec<&str> = here.iter().map(|token| token.text).collect();
                findings.push(Finding { line: here[0].line, said: said.join(" "), instead, word });
            }
        }
    }
    findings
}

/// Returns links in the Markdown file `path` to missing files, and to missing headings.
fn broken_links(text: &str, path: &Path) -> Vec<Finding> {
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
            let mut broken =
                |instead| findings.push(Finding { line: number + 1, said: link.to_owned(), instead, word: "" });
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
fn missing_in_book(summary: &str, files: &[PathBuf]) -> Vec<Finding> {
    let documents = files.iter().filter(|file| file.extension().is_some_and(|end| end == "md"));
    let documents = documents.filter_map(|file| file.strip_prefix("docs").ok()?.to_str());
    let documents = documents.filter(|name| *name != "SUMMARY.md");
    let missing = documents.filter(|name| !summary.contains(&format!("({name})")));
    missing.map(|name| Finding { line: 1, said: name.to_owned(), instead: "it in the book's list", word: "" }).collect()
}

/// Returns names of Rust sources in backquotes, with or without folders, that do not exist.
fn missing_sources(text: &str, exists: impl Fn(&str) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for said in line.split('`').skip(1).step_by(2) {
            let is_path = Path::new(said).extension().is_some_and(|end| end == "rs")
                && !said.contains(|c: char| c.is_whitespace() || "*{<$".contains(c));
            if is_path && !exists(said) {
                let instead = "the name of a file that exists";
                findings.push(Finding { line: number + 1, said: said.to_owned(), instead, word: "" });
            }
        }
    }
    findings
}

fn main() -> anyhow::Result<()> {
    run(&Arguments::parse())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<(usize, &'static str)> {
        uses(text).into_iter().map(|finding| (finding.line, finding.word)).collect()
    }

    #[test]
    fn every_spelling_is_found() {
        for text in ["make_good()", "fn MakeGood", "// make good", "/// They make\n/// good what", "MAKE_GOOD"] {
            assert_eq!(words(text), [(1, "make good")], "{text}");
        }
        assert_eq!(words("a\n//! a `Latch` and\n//! rehearsals"), [(2, "latch*"), (3, "rehears*")]);
        assert_eq!(
            words("struct SecondCrashes; const MOST_THREADS: u8; Scratch"),
            [(1, "second crashes"), (1, "MOST_*"), (1, "Scratch")]
        );
    }

    #[test]
    fn other_words_are_not() {
        for text in
            ["dispatch", "make. Good", "the most that it takes", "a scratch register", "(make, good)", "stop_the_world"]
        {
            assert_eq!(words(text), [], "{text}");
        }
    }

    #[test]
    fn links_lead_to_files() {
        let here = tools::workspace_root();
        let text = "## It's `a::b`, too\n[a](README.md#quick-start) [b](https://example.com/x) [e](#its-ab-too) `f](g)`\n\
                    [c](no-such-file.md) [d](README.md#no-such-heading)";
        let found = broken_links(text, &here.join("CHANGELOG.md"));
        let found: Vec<_> = found.into_iter().map(|finding| (finding.line, finding.said)).collect();
        assert_eq!(found, [(3, "no-such-file.md".to_owned()), (3, "README.md#no-such-heading".to_owned())]);
    }

    #[test]
    fn the_book_has_each_document() {
        let files = ["docs/SUMMARY.md", "docs/a.md", "docs/b.md", "README.md"].map(PathBuf::from);
        let found = missing_in_book("* [A](a.md)", &files);
        assert_eq!(found.into_iter().map(|finding| finding.said).collect::<Vec<_>>(), ["b.md"]);
    }

    #[test]
    fn sources_that_are_named_exist() {
        let text = "//! `linux/deadline.rs` and `a.rs b.rs`\n//! not `line.rs`";
        let findings = missing_sources(text, |said| said == "linux/deadline.rs");
        let found: Vec<_> = findings.into_iter().map(|finding| (finding.line, finding.said)).collect();
        assert_eq!(found, [(2, "line.rs".to_owned())]);
    }
}
