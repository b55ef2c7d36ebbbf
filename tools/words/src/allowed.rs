//! The uses that are left: a number per rule and place, which may only fall.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::Context;

use crate::Finding;

/// A rule's name and a place: a crate, a package, a folder, a document or a commit.
type Key = (String, String);

/// The allowed uses, as in `allowed.txt`.
#[derive(Debug, Default)]
pub(crate) struct Allowed {
    /// The comment at the file's beginning.
    header: String,
    /// Number of uses, and the reason if they are to stay.
    uses: BTreeMap<Key, (usize, String)>,
}

/// Returns the place of a file: its crate, package or folder; of a document, the file itself.
pub(crate) fn area(file: &str) -> String {
    let parts: Vec<&str> = file.split('/').collect();
    let depth = if parts[0] == "crates" { 3 } else { 2 };
    parts[..depth.min(parts.len())].join("/")
}

/// Returns the number of findings by rule and place.
fn count(found: &[(String, Finding)]) -> BTreeMap<Key, usize> {
    let mut counts = BTreeMap::new();
    for (file, finding) in found.iter().filter(|(_, finding)| !finding.rule.is_empty()) {
        *counts.entry((finding.rule.clone(), area(file))).or_default() += 1;
    }
    counts
}

impl Allowed {
    /// Reads the lines `rule<TAB>place<TAB>number`, with a reason as an optional fourth column.
    ///
    /// # Errors
    /// An error if a line has another form.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let mut allowed = Self::default();
        for line in text.lines() {
            if line.starts_with('#') {
                allowed.header += line;
                allowed.header.push('\n');
                continue;
            }
            let mut columns = line.split('\t');
            let (rule, place) = columns.next().zip(columns.next()).with_context(|| format!("missing place: {line}"))?;
            let uses = columns.next().and_then(|uses| uses.parse().ok());
            let uses = uses.with_context(|| format!("missing number: {line}"))?;
            let reason = columns.next().unwrap_or_default().to_owned();
            allowed.uses.insert((rule.to_owned(), place.to_owned()), (uses, reason));
        }
        Ok(allowed)
    }

    /// Returns the number of uses that are allowed.
    pub(crate) fn uses(&self, rule: &str, place: &str) -> usize {
        self.uses.get(&(rule.to_owned(), place.to_owned())).map_or(0, |(uses, _)| *uses)
    }

    /// Returns the number of all uses that are allowed.
    pub(crate) fn total(&self) -> usize {
        self.uses.values().map(|(uses, _)| uses).sum()
    }

    /// Returns the rules and places with more findings than are allowed.
    pub(crate) fn over(&self, found: &[(String, Finding)]) -> BTreeSet<Key> {
        let over = count(found).into_iter().filter(|((rule, place), uses)| *uses > self.uses(rule, place));
        over.map(|(key, _)| key).collect()
    }

    /// Lowers each number to that of the findings, and returns how many were lowered.
    pub(crate) fn lower(&mut self, found: &[(String, Finding)]) -> usize {
        let counts = count(found);
        let mut lowered = 0;
        for (key, (uses, _)) in &mut self.uses {
            let left = counts.get(key).copied().unwrap_or(0);
            if left < *uses {
                (*uses, lowered) = (left, lowered + 1);
            }
        }
        self.uses.retain(|_, (uses, _)| *uses > 0);
        lowered
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.header)?;
        for ((rule, place), (uses, reason)) in &self.uses {
            let reason = if reason.is_empty() { String::new() } else { format!("\t{reason}") };
            writeln!(f, "{rule}\t{place}\t{uses}{reason}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Uses.\nis no\tcrates/base/report\t2\nlatch*\tdocs/c.md\t1\ta name\n";

    fn found(files: &[(&str, &str)]) -> Vec<(String, Finding)> {
        let finding =
            |rule: &str| Finding { line: 1, text: String::new(), instead: String::new(), rule: rule.to_owned() };
        files.iter().map(|(file, rule)| ((*file).to_owned(), finding(rule))).collect()
    }

    #[test]
    fn more_uses_than_allowed_are_over_and_fewer_lower_the_number() {
        let mut allowed = Allowed::parse(TEXT).expect("valid");
        assert_eq!(allowed.to_string(), TEXT);
        let (one, two) = (("crates/base/report/src/a.rs", "is no"), ("crates/base/report/tests/b.rs", "is no"));
        let document = ("docs/c.md", "latch*");
        assert!(allowed.over(&found(&[one, two, document])).is_empty());
        let over = allowed.over(&found(&[one, two, one, ("docs/d.md", "latch*")]));
        let over: Vec<_> = over.iter().map(|(rule, place)| (rule.as_str(), place.as_str())).collect();
        assert_eq!(over, [("is no", "crates/base/report"), ("latch*", "docs/d.md")]);
        assert_eq!(allowed.lower(&found(&[one, one, one])), 1);
        assert_eq!(allowed.to_string(), "# Uses.\nis no\tcrates/base/report\t2\n");
        assert_eq!(allowed.lower(&found(&[one])), 1);
        assert_eq!(allowed.to_string(), "# Uses.\nis no\tcrates/base/report\t1\n");
    }

    #[test]
    fn a_place_is_a_crate_a_package_or_a_document() {
        let places = [
            ("crates/base/report/src/lib.rs", "crates/base/report"),
            ("tools/words/src/main.rs", "tools/words"),
            ("docs/c.md", "docs/c.md"),
            ("README.md", "README.md"),
            ("commit 12345678", "commit 12345678"),
        ];
        for (file, place) in places {
            assert_eq!(area(file), place);
        }
    }
}
