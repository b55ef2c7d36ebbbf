//! Edits of a file that leave all other bytes unchanged.

use std::ops::Range;

/// Ranges with their replacements. An empty range is an insertion.
#[derive(Debug, Default)]
pub(crate) struct Edits {
    edits: Vec<(Range<usize>, Vec<u8>)>,
}

impl Edits {
    pub(crate) fn replace(&mut self, range: Range<usize>, with: impl Into<Vec<u8>>) {
        self.edits.push((range, with.into()));
    }

    /// Inserts bytes before the byte at `at`; several insertions at one place keep their order.
    pub(crate) fn insert(&mut self, at: usize, what: impl Into<Vec<u8>>) {
        self.replace(at..at, what);
    }

    /// Returns the edited file. If ranges overlap, which is possible in damaged reports, the first
    /// applies.
    pub(crate) fn apply(mut self, bytes: &[u8]) -> Vec<u8> {
        self.edits.sort_by_key(|(range, _)| (range.start, range.end));
        let mut changed =
            Vec::with_capacity(bytes.len() + self.edits.iter().map(|(_, with)| with.len()).sum::<usize>());
        let mut at = 0;
        for (range, with) in self.edits {
            let Some(kept) = bytes.get(at..range.start).filter(|_| range.end <= bytes.len()) else { continue };
            changed.extend_from_slice(kept);
            changed.extend_from_slice(&with);
            at = range.end;
        }
        changed.extend_from_slice(bytes.get(at..).unwrap_or_default());
        changed
    }
}

#[cfg(test)]
mod tests;
