//! Sequences of words in identifiers, comments, strings and prose.

use crate::Finding;
use crate::rules::{Check, Rules};

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

/// Returns `true` if a word of the text matches a phrase's word.
fn matches(token: &Token<'_>, wanted: &str) -> bool {
    let (stem, any_end) = wanted.strip_suffix('*').map_or((wanted, false), |stem| (stem, true));
    if let Some(stem) = stem.strip_suffix('_') {
        return token.text == stem && token.underscore;
    }
    let same = |text: &str| if any_end { text.starts_with(stem) } else { text == stem };
    if stem.chars().any(char::is_uppercase) { same(token.text) } else { same(&token.text.to_lowercase()) }
}

/// Returns all uses of the rules' phrases in a text.
pub(crate) fn uses(rules: &Rules, text: &str) -> Vec<Finding> {
    let tokens = tokens(text);
    let mut findings = Vec::new();
    for rule in rules.rule.iter().filter(|rule| rule.check == Check::Words) {
        for phrase in &rule.find {
            let parts: Vec<&str> = phrase.split(' ').collect();
            for (at, here) in tokens.windows(parts.len()).enumerate() {
                let is_phrase = here.iter().zip(&parts).all(|(token, part)| matches(token, part))
                    && here[1..].iter().all(|token| token.follows);
                let is_in = |token: Option<&Token<'_>>, words: &[String]| {
                    token.is_some_and(|token| words.iter().any(|word| matches(token, word)))
                };
                let before = at.checked_sub(1).map(|before| &tokens[before]);
                if is_phrase
                    && !is_in(before, &rule.not_after)
                    && !is_in(tokens.get(at + parts.len()), &rule.not_before)
                {
                    let words: Vec<&str> = here.iter().map(|token| token.text).collect();
                    findings.push(Finding {
                        line: here[0].line,
                        text: words.join(" "),
                        instead: rule.instead.clone(),
                        rule: rule.name.clone(),
                    });
                }
            }
        }
    }
    findings.sort_by_key(|finding| finding.line);
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phrase_is_found_with_its_line() {
        let rules = Rules::load().expect("valid rules");
        let found = uses(&rules, "a\n//! a `Latch` and\n//! rehearsals make\n//! good");
        let found: Vec<_> = found.iter().map(|finding| (finding.line, finding.text.as_str())).collect();
        assert_eq!(found, [(2, "Latch"), (3, "rehearsals"), (3, "make good")]);
    }
}
