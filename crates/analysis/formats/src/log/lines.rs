//! The lines of a log, without what its logger put before each.

use std::borrow::Cow;

/// Bytes of a line that are looked at.
const MAX_LINE: usize = 64 << 10;

/// A line.
#[derive(Debug)]
pub(super) struct Line<'t> {
    pub(super) text: Cow<'t, str>,
    /// Where in the log it begins.
    pub(super) offset: usize,
    /// From 1.
    pub(super) number: usize,
}

/// The lines from a place of a log on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lines<'t> {
    bytes: &'t [u8],
    at: usize,
    number: usize,
    /// What the logger put before the first line of a text; before the others stands the same, but for digits.
    prefix: &'t [u8],
}

impl<'t> Lines<'t> {
    pub(super) fn of(bytes: &'t [u8]) -> Self {
        Lines { bytes, at: 0, number: 0, prefix: b"" }
    }

    /// How many lines were read.
    pub(super) fn number(&self) -> usize {
        self.number
    }

    /// The next line, and the lines from it on.
    pub(super) fn next_from(&mut self) -> Option<(Line<'t>, Lines<'t>)> {
        let from = *self;
        Some((self.next()?, from))
    }

    /// Whether the text ends in the middle of a line.
    pub(super) fn is_torn(&self) -> bool {
        !self.bytes.ends_with(b"\n")
    }

    /// These lines without their first `length` bytes, where they begin as this one does.
    pub(super) fn behind_prefix(self, length: usize) -> Lines<'t> {
        Lines { prefix: self.bytes.get(self.at..self.at + length).unwrap_or_default(), ..self }
    }

    pub(super) fn without_prefix(self) -> Lines<'t> {
        Lines { prefix: b"", ..self }
    }

    /// The bytes from here to where `rest` begins.
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

/// The line behind the prefix: digits stand for each other (times, numbers of processes).
fn without<'l>(line: &'l [u8], prefix: &[u8]) -> Option<&'l [u8]> {
    let (start, rest) = line.split_at_checked(prefix.len())?;
    let same = |(one, other): (&u8, &u8)| one == other || (one.is_ascii_digit() && other.is_ascii_digit());
    start.iter().zip(prefix).all(same).then_some(rest)
}
