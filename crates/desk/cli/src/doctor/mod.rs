//! `coroner doctor`: shows which parts of Coroner work on this system, which don't, and why.
//!
//! A check *tries* what Coroner would do instead of reading a version number: it maps, locks,
//! attaches and reserves. Each check is a function that returns a [`Finding`] and has a line in a
//! table.

use std::path::{Path, PathBuf};

use anstyle::{AnsiColor, Style};

#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux;
mod program;
mod store;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Grade {
    /// Works as intended.
    Works,
    /// Nothing is wrong, but the finding is useful to know.
    Note,
    /// Coroner uses another way, or part of a report will be missing.
    Limited,
    /// Reports are lost.
    Fails,
}

#[derive(Debug, Clone, serde::Serialize)]
pub(crate) struct Finding {
    pub(crate) grade: Grade,
    /// The subject of the check, in a few words.
    pub(crate) subject: &'static str,
    pub(crate) found: String,
    /// The effect on reports and the remedy; empty if everything works.
    pub(crate) consequence: String,
}

impl Finding {
    fn works(subject: &'static str, found: impl Into<String>) -> Self {
        Self { grade: Grade::Works, subject, found: found.into(), consequence: String::new() }
    }

    fn other(grade: Grade, subject: &'static str, found: impl Into<String>, consequence: impl Into<String>) -> Self {
        Self { grade, subject, found: found.into(), consequence: consequence.into() }
    }
}

/// Checks the system, the directory `store`, and `program`, whose crashes are to be reported.
pub(crate) fn examine(store: &Path, program: Option<PathBuf>) -> Vec<Finding> {
    let mut findings = Vec::new();
    #[cfg(any(target_os = "linux", target_os = "android"))]
    findings.extend(linux::CHECKS.iter().map(|check| check()));
    findings.extend(store::examine(store));
    findings.extend(program::examine(program));
    findings
}

pub(crate) fn print(findings: &[Finding], out: &mut impl std::io::Write) -> std::io::Result<()> {
    let width = findings.iter().map(|finding| finding.subject.len()).max().unwrap_or(0);
    for Finding { grade, subject, found, consequence } in findings {
        let (mark, colour) = match grade {
            Grade::Works => ("ok  ", AnsiColor::Green),
            Grade::Note => ("note", AnsiColor::Cyan),
            Grade::Limited => ("part", AnsiColor::Yellow),
            Grade::Fails => ("FAIL", AnsiColor::Red),
        };
        let style = Style::new().fg_color(Some(colour.into())).bold();
        writeln!(out, "{style}{mark}{style:#}  {subject:width$}  {found}")?;
        if !consequence.is_empty() {
            writeln!(out, "{:1$}{consequence}", "", width + 8)?;
        }
    }
    let number = |grade| findings.iter().filter(|finding| finding.grade == grade).count();
    writeln!(
        out,
        "\n{} passed, {} limited, {} failed",
        findings.len() - number(Grade::Limited) - number(Grade::Fails),
        number(Grade::Limited),
        number(Grade::Fails)
    )
}
