//! Checks the text of the sources, documents and commits by the style guide's rules, and links.
//!
//! The rules are data: `rules.toml` has what they look for, `allowed.txt` the uses that are left.
//! See the package's `README.md`.

mod allowed;
mod links;
mod phrases;
mod rules;
mod shape;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use clap::Parser as _;

use allowed::Allowed;
use rules::{Check, Rules};
use toolbox::tools;

#[derive(Debug, clap::Parser)]
#[command(about)]
struct Arguments {
    /// Print one JSON object, a row per finding, as the last line
    #[arg(long)]
    json: bool,
    /// Lower the allowed uses to those that are left
    #[arg(long)]
    lower: bool,
    /// List the uses that are allowed, too
    #[arg(long)]
    all: bool,
}

/// Extensions of the files to read: sources and docs.
const EXTENSIONS: &[&str] = &["rs", "md", "toml", "c", "cpp", "h", "cddl"];

/// Folders that contain none of our text.
const SKIPPED: &[&str] = &["target", "fixtures", "corpus", "expected"];

/// The checker itself, whose rules and tests contain what it looks for. Its README is read.
const OWN: &str = "tools/words/";

/// A use of a phrase, a shape that the rules reject, or a path that doesn't exist.
#[derive(Debug, PartialEq)]
struct Finding {
    line: usize,
    text: String,
    instead: String,
    /// Name of the rule; empty for a path, of which no use is allowed.
    rule: String,
}

/// Checks all sources, documents and commits.
///
/// # Errors
/// An error for a finding that is not allowed, or an unreadable file.
fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let root = tools::workspace_root();
    let rules = Rules::load()?;
    let mut files = Vec::new();
    collect(&root, &root, &mut files)?;
    files.sort();
    let mut found: Vec<(String, Finding)> = Vec::new();
    for file in &files {
        let name = file.to_string_lossy().into_owned();
        if name.starts_with(OWN) && !name.ends_with("README.md") {
            continue;
        }
        let path = root.join(file);
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let mut findings = in_text(&rules, &name, &text);
        findings.extend(links::missing_sources(&text, |source| {
            root.join(source).exists() || files.iter().any(|file| file.ends_with(source))
        }));
        if file.extension().is_some_and(|end| end == "md") {
            findings.extend(links::broken(&text, &path));
        }
        if name == "docs/SUMMARY.md" {
            findings.extend(links::missing_in_book(&text, &files));
        }
        found.extend(findings.into_iter().map(|finding| (name.clone(), finding)));
    }
    found.extend(subjects(&rules, &root));

    let place = root.join("tools/words/allowed.txt");
    let mut allowed = Allowed::parse(&std::fs::read_to_string(&place).context("tools/words/allowed.txt")?)?;
    let over = allowed.over(&found);
    let mut rows = Vec::new();
    for (name, finding) in &found {
        let is_over = finding.rule.is_empty() || over.contains(&(finding.rule.clone(), allowed::area(name)));
        if is_over || arguments.all {
            println!("{name}:{}: \"{}\": use {}", finding.line, finding.text, finding.instead);
        }
        if is_over {
            rows.push(serde_json::json!({
                "file": name, "line": finding.line, "text": finding.text, "instead": finding.instead, "rule": finding.rule
            }));
        }
    }
    for (rule, area) in &over {
        println!("{area}: more uses of \"{rule}\" than the {} that are allowed", allowed.uses(rule, area));
    }
    let fewer = allowed.lower(&found);
    if arguments.lower {
        std::fs::write(&place, allowed.to_string()).context("tools/words/allowed.txt")?;
    } else if fewer > 0 {
        println!("{fewer} numbers of allowed uses can be lowered: cargo xtask words --lower");
    }
    println!("{} files, {} findings, {} allowed uses", files.len(), rows.len(), allowed.total());
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

/// Applies all rules for files to the text of a file.
fn in_text(rules: &Rules, name: &str, text: &str) -> Vec<Finding> {
    let mut findings = phrases::uses(rules, text);
    for rule in &rules.rule {
        findings.extend(match rule.check {
            Check::DocOpening if has_end(name, &["rs"]) => shape::doc_openings(rule, text),
            Check::CommentColumns if has_end(name, &["rs", "c", "cpp", "h"]) => shape::comment_columns(rule, text),
            Check::SentenceWords if name == "README.md" || name.starts_with("docs/") && has_end(name, &["md"]) => {
                shape::sentence_words(rule, text)
            }
            _ => Vec::new(),
        });
    }
    findings
}

/// Returns `true` if the file's name has one of these extensions.
fn has_end(name: &str, ends: &[&str]) -> bool {
    Path::new(name).extension().is_some_and(|end| ends.iter().any(|known| end == *known))
}

/// Checks the subjects of the commits after the base, each with the commit in place of a file.
///
/// Returns nothing where there is no git, no repository, or a clone without the base.
fn subjects(rules: &Rules, root: &Path) -> Vec<(String, Finding)> {
    let range = format!("{}..HEAD", rules.commits_after);
    let log = Command::new("git").args(["log", "--no-merges", "--format=%h %s", &range]).current_dir(root).output();
    let Ok(log) = log else { return Vec::new() };
    if !log.status.success() {
        println!("skipped: commit subjects, because the git history doesn't reach {}", rules.commits_after);
        return Vec::new();
    }
    let mut found = Vec::new();
    for line in String::from_utf8_lossy(&log.stdout).lines() {
        let Some((commit, subject)) = line.split_once(' ') else { continue };
        for rule in rules.rule.iter().filter(|rule| rule.check == Check::SubjectColumns) {
            found.extend(shape::subject_columns(rule, subject).map(|finding| (format!("commit {commit}"), finding)));
        }
    }
    found
}

fn main() -> anyhow::Result<()> {
    run(&Arguments::parse())
}
