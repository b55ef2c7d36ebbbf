//! Assigns a symbol to each address of a scan: sorted addresses, each with its best symbol so far.

/// A symbol's name and its rank: of two symbols that begin at one address, the higher rank wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) rank: u8,
    pub(crate) name: NameAt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameAt {
    /// No name: nothing was found, or something without a name begins there.
    None,
    /// At an offset of the string table.
    String(u32),
    /// At the export trie node at this offset.
    TrieNode(u64),
}

const NOTHING: Candidate = Candidate { rank: 0, name: NameAt::None };

/// An address, and what was found for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Query {
    pub(crate) tag: u32,
    /// After [`Queries::finish`], the start of the symbol; its name is in `found`.
    pub(crate) start: u64,
    pub(crate) found: Candidate,
    /// The name of the gap before the address: see `gap_starts`.
    gap: Candidate,
    /// Whether a sized symbol around the address was found.
    ///
    /// `start` and `found` are then those of the one that begins last.
    around: bool,
}

const EMPTY: Query = Query { tag: 0, start: 0, found: NOTHING, gap: NOTHING, around: false };

/// Number of slots in the search start table: 4 KiB with 16-bit indexes.
const SLOTS: usize = 2048;

/// Up to `N` addresses. Offering a symbol takes constant time if the addresses are spread out.
///
/// Symbols with a size name what they contain; of several, the one that begins last is the
/// innermost. Symbols without a size name everything up to whatever begins next. For that it is
/// enough to keep, in each gap between two addresses, the one that begins last: [`Queries::finish`]
/// carries it on to the later addresses. So a symbol changes one entry, not one for each address
/// that it may be nearest to.
#[derive(Debug)]
pub(crate) struct Queries<const N: usize> {
    /// The addresses, in a separate array like `gap_starts`: nearly all symbols touch nothing else.
    svmas: [u64; N],
    /// Start of the last unsized symbol or boundary between the previous address and this one.
    ///
    /// 0 with an unnamed `gap` if there is none.
    gap_starts: [u64; N],
    entries: [Query; N],
    length: usize,
    /// For each slot of the address range, the first query at or above the slot's start.
    slots: [u16; SLOTS],
    shift: u32,
    first: u64,
    last: u64,
}

impl<const N: usize> Queries<N> {
    pub(crate) const fn new() -> Self {
        const { assert!(N > 0 && N <= u16::MAX as usize) };
        Self {
            svmas: [0; N],
            gap_starts: [0; N],
            entries: [EMPTY; N],
            length: 0,
            slots: [0; SLOTS],
            shift: 0,
            first: 0,
            last: 0,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.length = 0;
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    pub(crate) fn push(&mut self, svma: u64, tag: u32) -> bool {
        let (Some(key), Some(entry)) = (self.svmas.get_mut(self.length), self.entries.get_mut(self.length)) else {
            return false;
        };
        *key = svma;
        *entry = Query { tag, ..EMPTY };
        self.length = self.length.wrapping_add(1);
        true
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Query> {
        self.entries.iter().take(self.length)
    }

    /// Sorts the addresses, clears the results of an earlier scan, and fills the slots.
    pub(crate) fn prepare(&mut self) {
        self.sort();
        for (entry, gap_start) in self.entries.iter_mut().zip(&mut self.gap_starts).take(self.length) {
            *entry = Query { tag: entry.tag, ..EMPTY };
            *gap_start = 0;
        }
        let svmas = self.svmas.get(..self.length).unwrap_or(&[]);
        self.first = svmas.first().copied().unwrap_or(0);
        self.last = svmas.last().copied().unwrap_or(0);
        // Ensures that the last address is in a slot: its distance, shifted, is below SLOTS.
        let distance = self.last.wrapping_sub(self.first);
        self.shift = (u64::BITS - distance.leading_zeros()).saturating_sub(SLOTS.trailing_zeros());
        let mut query = 0usize;
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let start = self.first.saturating_add((index as u64).checked_shl(self.shift).unwrap_or(u64::MAX));
            while svmas.get(query).is_some_and(|&svma| svma < start) {
                query = query.wrapping_add(1);
            }
            *slot = query as u16;
        }
    }

    /// Sorts with Shell's sort (gaps by Ciura), because the library's sorts can panic.
    fn sort(&mut self) {
        let length = self.length.min(N);
        for gap in [1750usize, 701, 301, 132, 57, 23, 10, 4, 1] {
            for end in gap..length {
                let mut at = end;
                while let Some(before) = at.checked_sub(gap) {
                    let (Some(&lower), Some(&upper)) = (self.svmas.get(before), self.svmas.get(at)) else { break };
                    if lower <= upper {
                        break;
                    }
                    exchange(&mut self.svmas, before, at);
                    exchange(&mut self.entries, before, at);
                    at = before;
                }
            }
        }
    }

    /// Returns the index of the first address at or above `svma`, which must not be above the last.
    #[inline]
    fn first_from(&self, svma: u64) -> usize {
        if svma <= self.first {
            return 0;
        }
        let slot = svma.wrapping_sub(self.first).wrapping_shr(self.shift) as usize;
        let mut low = self.slots.get(slot).map_or(0, |&index| usize::from(index));
        let mut high = self.slots.get(slot.wrapping_add(1)).map_or(self.length, |&index| usize::from(index));
        // Nearly always `low` is the answer already, because most slots have no address.
        while low < high {
            let middle = low.wrapping_add(high.wrapping_sub(low) / 2);
            if self.svmas.get(middle).is_some_and(|&key| key < svma) {
                low = middle.wrapping_add(1);
            } else {
                high = middle;
            }
        }
        low
    }

    /// Offers a symbol. Size 0 means that the table has none.
    #[inline]
    pub(crate) fn offer(&mut self, start: u64, size: u64, candidate: Candidate) {
        if start > self.last || self.length == 0 {
            return;
        }
        let mut behind = self.first_from(start);
        if size == 0 {
            return self.fill_gap(behind, start, candidate);
        }
        let end = start.saturating_add(size);
        while behind < self.length && self.svmas.get(behind).is_some_and(|&svma| svma < end) {
            self.surround(behind, start, candidate);
            behind = behind.wrapping_add(1);
        }
        // A label before it, or in it, doesn't extend beyond its end.
        self.fill_gap(behind, end, NOTHING);
    }

    /// Records a sized symbol that contains the address.
    fn surround(&mut self, index: usize, start: u64, candidate: Candidate) {
        let Some(query) = self.entries.get_mut(index) else { return };
        if !query.around || (start, candidate.rank) > (query.start, query.found.rank) {
            query.around = true;
            query.start = start;
            query.found = candidate;
        }
    }

    /// Records that something begins or ends here that isn't in the table.
    ///
    /// A symbol without a size doesn't extend beyond it.
    #[inline]
    pub(crate) fn boundary(&mut self, svma: u64) {
        if svma <= self.last && self.length != 0 {
            self.fill_gap(self.first_from(svma), svma, NOTHING);
        }
    }

    #[inline]
    fn fill_gap(&mut self, index: usize, start: u64, candidate: Candidate) {
        if index >= self.length {
            return;
        }
        let (Some(gap_start), Some(query)) = (self.gap_starts.get_mut(index), self.entries.get_mut(index)) else {
            return;
        };
        if start > *gap_start || (start == *gap_start && candidate.rank > query.gap.rank) {
            *gap_start = start;
            query.gap = candidate;
        }
    }

    /// Settles each address.
    ///
    /// The name is that of the innermost symbol around it, else that of the nearest unsized symbol
    /// before it after which nothing else begins.
    pub(crate) fn finish(&mut self) {
        let mut nearest = (0, NOTHING);
        for (query, &gap_start) in self.entries.iter_mut().zip(&self.gap_starts).take(self.length) {
            if gap_start != 0 || query.gap.rank != 0 {
                nearest = (gap_start, query.gap);
            }
            if !query.around {
                (query.start, query.found) = nearest;
            }
        }
    }
}

fn exchange<T: Copy>(values: &mut [T], a: usize, b: usize) {
    let (Some(&first), Some(&second)) = (values.get(a), values.get(b)) else { return };
    if let Some(to) = values.get_mut(a) {
        *to = second;
    }
    if let Some(to) = values.get_mut(b) {
        *to = first;
    }
}

#[cfg(test)]
mod tests;
