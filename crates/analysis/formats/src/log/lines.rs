//! The lines of a log, without the logger's prefixes.

use std::borrow::Cow;

/// Maximum number of a line's bytes that are read.
const MAX_LINE: usize = 64 << 10;

/// A line of a log.
#[derive(Debug)]
pub(super) struct Line<'t> {
    pub(super) text: Cow<'t, str>,
    /// Offset in the log, in bytes.
    pub(super) offset: usize,
    /// Line number, from 1.
    pub(super) number: usize,
}

/// An iterator over the lines of a log from a position on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lines<'t> {
    bytes: &'t [u8],
    at: usize,
    number: usize,
    /// The logger's prefix of a text's first line; the prefixes of the other lines differ only in
    /// digits.
    prefix: &'t [u8],
}

impl<'t> Lines<'t> {
    pub(super) fn new(bytes: &'t [u8]) -> Self {
        Lines { bytes, at: 0, number: 0, prefix: b"" }
    }

    /// Returns how many lines were read.
    pub(super) fn number(&self) -> usize {
        self.number
    }

    /// Returns the next line, and an iterator that starts with that line.
    pub(super) fn next_from(&mut self) -> Option<(Line<'t>, Lines<'t>)> {
        let from = *self;
        Some((self.next()?, from))
    }

    /// Whether the text ends in the middle of a line.
    pub(super) fn is_truncated(&self) -> bool {
        !self.bytes.ends_with(b"\n")
    }

    /// Returns these lines without their first `length` bytes, if they start like this one.
    pub(super) fn after_prefix(self, length: usize) -> Lines<'t> {
        Lines { prefix: self.bytes.get(self.at..self.at + length).unwrap_or_default(), ..self }
    }

    pub(super) fn without_prefix(self) -> Lines<'t> {
        Lines { prefix: b"", ..self }
    }

    /// Returns the bytes from here to the start of `rest`.
    pub(super) fn text_up_to(&self, rest: Lines<'t>) -> &'t [u8] {
        self.bytes.get(self.at..rest.at).unwrap_or_default()
    }
}

impl<'t> Iterator for Lines<'t> {
    type Item = Line<'t>;

    fn next(&mut self) -> Option<Line<'t>> {
        let rest = self.bytes.get(self.at..).filter(|rest| !rest.is_empty())?;
        let length = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
        let offset = self.at;
        self.at += (length + 1).min(rest.len());
        self.number += 1;
        let line = &rest[..length.min(MAX_LINE)];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let line = without(line, self.prefix).unwrap_or(line);
        Some(Line { text: String::from_utf8_lossy(line), offset, number: self.number })
    }
}

/// Returns the line after the prefix. Any digits match each other (times, process ids).
fn without<'l>(line: &'l [u8], prefix: &[u8]) -> Option<&'l [u8]> {
    let (start, rest) = line.split_at_checked(prefix.len())?;
    let same = |(one, other): (&u8, &u8)| one == other || (one.is_ascii_digit() && other.is_ascii_digit());
    start.iter().zip(prefix).all(same).then_some(rest)
}
