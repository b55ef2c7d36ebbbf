//! Shortens source paths and function names for people.
//!
//! The parts that are the same on each line, or that describe a build machine's directories, are
//! removed.

use std::borrow::Cow;

/// Number of last components shown for a path of unknown origin.
const SHOWN: usize = 4;

/// Shortens the path of a source file for people.
///
/// | the path | what is shown |
/// |---|---|
/// | `/rustc/<40 digits>/library/core/src/…` | `core/src/…` |
/// | `…/lib/rustlib/src/rust/library/std/src/…` | `std/src/…` |
/// | `…/registry/src/<index>/tokio-1.2.3/src/…` | `tokio-1.2.3/src/…` |
/// | `…/git/checkouts/<name>-<digits>/<commit>/src/…` | `<name>-<digits>/src/…` |
/// | `/usr/include/c++/12/bits/…` | `c++/12/bits/…` |
/// | any other with more than four components | `…/` and the last four |
pub fn short_path(path: &str) -> Cow<'_, str> {
    if let Some(below) = after(path, "/rustc/").and_then(|below| below.split_once('/')).map(|(_, below)| below) {
        return Cow::Borrowed(below.strip_prefix("library/").unwrap_or(below));
    }
    if let Some(below) = after(path, "/rustlib/src/rust/library/") {
        return Cow::Borrowed(below);
    }
    if let Some((_, below)) = after(path, "/registry/src/").and_then(|below| below.split_once('/')) {
        return Cow::Borrowed(below);
    }
    if let Some((checkout, rest)) = after(path, "/git/checkouts/").and_then(|below| below.split_once('/'))
        && let Some((_, below)) = rest.split_once('/')
    {
        return Cow::Owned(format!("{checkout}/{below}"));
    }
    if let Some(below) = after(path, "/usr/include/") {
        return Cow::Borrowed(below);
    }
    match path.rmatch_indices('/').nth(SHOWN - 1) {
        Some((slash, _)) if slash > 0 => Cow::Owned(format!("…{}", &path[slash..])),
        _ => Cow::Borrowed(path),
    }
}

fn after<'p>(path: &'p str, part: &str) -> Option<&'p str> {
    path.find(part).map(|start| &path[start + part.len()..])
}

/// Shortens the name of a function to at most `width` characters.
///
/// A longer name loses the contents of its angle brackets first, then the types of its arguments,
/// then its middle.
pub fn short_function(function: &str, width: usize) -> Cow<'_, str> {
    let fits = |name: &str| name.chars().count() <= width;
    if fits(function) {
        return Cow::Borrowed(function);
    }
    let generic = without_nested(function, '<', '>');
    if fits(&generic) {
        return Cow::Owned(generic);
    }
    let bare = without_nested(&generic, '(', ')');
    if fits(&bare) {
        return Cow::Owned(bare);
    }
    let characters: Vec<char> = bare.chars().collect();
    let kept = width.saturating_sub(1).max(2);
    let (head, tail) = (kept / 3, kept - kept / 3);
    let from = characters.len().saturating_sub(tail);
    Cow::Owned(characters[..head.min(from)].iter().chain(&['…']).chain(&characters[from..]).collect())
}

/// Replaces the contents of brackets with `…`.
///
/// Brackets at the start of a name identify its owner (`<T as Trait>::f`) and are kept, as is
/// `operator<`.
fn without_nested(name: &str, open: char, close: char) -> String {
    let mut short = String::new();
    let mut depth = 0_usize;
    for character in name.chars() {
        let is_open = character == open && !short.is_empty() && !short.ends_with("operator");
        if depth == 0 && !(is_open) {
            short.push(character);
        } else if is_open {
            if depth == 0 {
                short.push(open);
                short.push('…');
            }
            depth += 1;
        } else if character == close {
            depth -= 1;
            if depth == 0 {
                short.push(close);
            }
        }
    }
    short
}
