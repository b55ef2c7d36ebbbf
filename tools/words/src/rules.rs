//! The rules as `rules.toml` has them.

use anyhow::Context;
use serde::Deserialize;

/// All rules.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rules {
    /// The commit after which commits are checked.
    pub(crate) commits_after: String,
    pub(crate) rule: Vec<Rule>,
}

/// A rule: what it looks for, and what to write instead.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    /// Name in `allowed.txt`; by default the first phrase.
    #[serde(default)]
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) check: Check,
    /// Phrases; for openings single words.
    #[serde(default)]
    pub(crate) find: Vec<String>,
    /// Words before a phrase with which it is fine.
    #[serde(default)]
    pub(crate) not_after: Vec<String>,
    /// Words after a phrase with which it is fine.
    #[serde(default)]
    pub(crate) not_before: Vec<String>,
    /// The limit, of rules that have one.
    #[serde(default)]
    pub(crate) max: usize,
    #[serde(rename = "use")]
    pub(crate) instead: String,
    /// Texts for the tests: the rule must find each.
    #[serde(default)]
    #[cfg_attr(not(test), expect(dead_code))]
    example: Vec<String>,
    /// Texts for the tests: the rule must find none.
    #[serde(default)]
    #[cfg_attr(not(test), expect(dead_code))]
    fine: Vec<String>,
}

/// The way to look.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Check {
    #[default]
    Words,
    DocOpening,
    CommentColumns,
    SentenceWords,
    SubjectColumns,
}

impl Rules {
    /// Reads `rules.toml`, which is compiled in.
    ///
    /// # Errors
    /// An error if it is invalid.
    pub(crate) fn load() -> anyhow::Result<Self> {
        let mut rules: Self = toml::from_str(include_str!("../rules.toml")).context("tools/words/rules.toml")?;
        for rule in &mut rules.rule {
            if rule.name.is_empty() {
                rule.name = rule.find.first().cloned().context("tools/words/rules.toml: a rule without a name")?;
            }
        }
        Ok(rules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{in_text, shape};

    /// Returns `true` if the rule finds something in a text.
    fn finds(rules: &Rules, rule: &Rule, text: &str) -> bool {
        match rule.check {
            Check::SubjectColumns => shape::subject_columns(rule, text).is_some(),
            Check::SentenceWords => in_text(rules, "docs/a.md", text).iter().any(|finding| finding.rule == rule.name),
            _ => in_text(rules, "src/a.rs", text).iter().any(|finding| finding.rule == rule.name),
        }
    }

    #[test]
    fn each_rule_finds_its_examples_and_nothing_else() {
        let rules = Rules::load().expect("valid rules");
        for rule in &rules.rule {
            let is_phrase = rule.check == Check::Words;
            let plain = rule.find.iter().filter(|phrase| is_phrase && !phrase.ends_with('*'));
            for text in plain.chain(&rule.example) {
                assert!(finds(&rules, rule, text), "\"{}\" isn't found in: {text}", rule.name);
            }
            for text in &rule.fine {
                assert!(!finds(&rules, rule, text), "\"{}\" is found in: {text}", rule.name);
            }
            let is_tried =
                !rule.example.is_empty() || rule.find.iter().all(|phrase| is_phrase && !phrase.ends_with('*'));
            assert!(is_tried, "\"{}\" has no example", rule.name);
        }
    }

    #[test]
    fn no_two_rules_have_the_same_name() {
        let mut names: Vec<_> = Rules::load().expect("valid rules").rule.into_iter().map(|rule| rule.name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
