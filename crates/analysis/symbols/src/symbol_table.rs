//! Nearest-symbol lookup: all that a file says about where functions begin and end, made into disjoint ranges once.

use std::{cell::Cell, cmp::Reverse, collections::BTreeMap};

use crate::mapped_file::Bytes;

/// Where a symbol was found, in rising order of trust for symbols that begin at the same address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum SymbolSource {
    /// Mach-O `LC_FUNCTION_STARTS`: a function begins here, and nothing says its name.
    FunctionStarts,
    /// A stub of the procedure linkage table, named after the symbol that its slot is bound to (`memcpy@plt`).
    Plt,
    /// The Mach-O export trie, or the exports of a PE file.
    ExportTrie,
    /// Mach-O Objective-C metadata: a method's implementation (`-[Class selector]`).
    ObjcMetadata,
    /// ELF `.gnu_debugdata`: the `.symtab` of functions that Fedora and Android keep in stripped files.
    MiniDebugInfo,
    /// ELF `.dynsym`.
    Dynsym,
    /// ELF `.symtab`, or a Mach-O `LC_SYMTAB`.
    Symtab,
    /// A `PUBLIC` or `FUNC` record of a breakpad `.sym` file.
    Breakpad,
    /// The local symbols that a dyld shared cache keeps for its images.
    SharedCacheLocals,
}

impl std::fmt::Display for SymbolSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::FunctionStarts => "function starts",
            Self::Plt => "PLT stubs",
            Self::ExportTrie => "exports",
            Self::ObjcMetadata => "Objective-C methods",
            Self::MiniDebugInfo => ".gnu_debugdata",
            Self::Dynsym => ".dynsym",
            Self::Symtab => "symbol table",
            Self::Breakpad => "breakpad records",
            Self::SharedCacheLocals => "shared cache locals",
        })
    }
}

/// How binding and type of a symbol speak for its name, where several symbols begin at one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Standing {
    /// A label without a type, or data.
    Label,
    Local,
    Weak,
    Global,
}

/// A name's place: in one of the table's pools, at an offset, up to the next NUL or the pool's end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NameRef {
    pool: u16,
    offset: u32,
}

/// The pool of names that were made by us; real pools count from 1.
const MADE: u16 = 0;
/// The "pool" of what has no name: the highest number that fits beside [`BEGINS_HERE`].
const UNNAMED: u16 = (1 << 15) - 1;

/// One thing that begins at an address, as a file states it. Kept small: there are hundreds of thousands to sort.
#[derive(Clone, Copy, Debug)]
struct Stated {
    start: u64,
    /// 0: the file doesn't say; the symbol reaches to the next one. No function has 4 GiB.
    size: u32,
    name_offset: u32,
    name_pool: u16,
    /// What decides between those that begin at one address, the highest wins: named before unnamed, one with a size
    /// before one without, then source, then standing.
    worth: u16,
}

const _: () = assert!(size_of::<Stated>() <= 24);

/// Collects what the parts of a file say; [`TableBuilder::build`] then settles it.
#[derive(Debug)]
pub(crate) struct TableBuilder {
    pools: Vec<Bytes>,
    /// Names that stand in no file: of PLT stubs and Objective-C methods.
    made: Vec<u8>,
    stated: Vec<Stated>,
    counts: BTreeMap<SymbolSource, usize>,
    /// How many bytes building may take, the table itself included.
    limit: usize,
    overflowed: bool,
}

impl Default for TableBuilder {
    fn default() -> Self {
        Self::within(usize::MAX)
    }
}

/// What a symbol takes while the table is built: as it was stated, and as the range that is made of it (of which an eighth more may be
/// made, with the symbols that go on behind others).
const SYMBOL_SIZE: usize = size_of::<Stated>() + 2 * size_of::<Range>();

impl TableBuilder {
    /// A builder that takes at most so many bytes.
    pub(crate) fn within(limit: usize) -> Self {
        let (pools, made, stated, counts) = Default::default();
        Self { pools, made, stated, counts, limit, overflowed: false }
    }

    /// How many bytes it may still take.
    pub(crate) fn left(&self) -> usize {
        let held: usize = self.pools.iter().map(Bytes::owned_size).sum();
        let stated = self.stated.capacity().saturating_mul(SYMBOL_SIZE);
        self.limit.saturating_sub(held).saturating_sub(self.made.capacity()).saturating_sub(stated)
    }

    /// Says that something was left out, since there was too little room for it.
    pub(crate) fn overflow(&mut self) {
        self.overflowed = true;
    }

    /// Whether there was too little room for what the file says.
    pub(crate) fn overflowed(&self) -> bool {
        self.overflowed
    }

    fn push(&mut self, stated: Stated) {
        // As much again is taken when there is no room left, and the old room is copied from.
        let full = self.stated.len() == self.stated.capacity();
        if full && self.limit != usize::MAX && self.left() < (self.stated.capacity() + 64).saturating_mul(SYMBOL_SIZE) {
            self.overflowed = true;
            return;
        }
        self.stated.push(stated);
    }

    /// Adds a string table that symbols then refer to. `None` where there are 32,000 already.
    pub(crate) fn pool(&mut self, bytes: Bytes) -> Option<u16> {
        let number = u16::try_from(self.pools.len() + 1).ok().filter(|&number| number < UNNAMED)?;
        self.pools.push(bytes);
        Some(number)
    }

    /// A name at an offset of a pool. Both formats' string offsets have 32 bits.
    pub(crate) fn name_at(pool: u16, offset: u32) -> NameRef {
        NameRef { pool, offset }
    }

    /// Keeps a name that stands in no file. `None` where there are 4 GiB of them already.
    pub(crate) fn make_name(&mut self, name: &[u8]) -> Option<NameRef> {
        let offset = u32::try_from(self.made.len()).ok()?;
        if self.made.capacity() - self.made.len() <= name.len()
            && self.limit != usize::MAX
            && self.left() < self.made.capacity() * 2 + name.len() + 64
        {
            self.overflowed = true;
            return None;
        }
        self.made.extend(name.iter().copied().filter(|&byte| byte != 0));
        self.made.push(0);
        Some(NameRef { pool: MADE, offset })
    }

    pub(crate) fn reserve(&mut self, symbols: usize) {
        if self.limit == usize::MAX {
            self.stated.reserve(symbols);
        } else if self.left() < symbols.saturating_mul(SYMBOL_SIZE) {
            self.overflowed = true;
        } else {
            self.stated.reserve_exact(symbols);
        }
    }

    pub(crate) fn add(&mut self, start: u64, size: u64, source: SymbolSource, standing: Standing, name: NameRef) {
        let worth = 1 << 15 | u16::from(size > 0) << 14 | (source as u16) << 4 | standing as u16;
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        self.push(Stated { start, size, name_offset: name.offset, name_pool: name.pool, worth });
    }

    /// Says how many symbols a source had.
    pub(crate) fn count(&mut self, source: SymbolSource, symbols: usize) {
        if symbols > 0 {
            *self.counts.entry(source).or_default() += symbols;
        }
    }

    /// How many symbols were added so far, boundaries included.
    pub(crate) fn added(&self) -> usize {
        self.stated.len()
    }

    /// Here something begins (or a section ends) whose name isn't known: symbols without a size end before it.
    pub(crate) fn boundary(&mut self, at: u64) {
        self.push(Stated { start: at, size: 0, name_offset: 0, name_pool: UNNAMED, worth: 0 });
    }

    pub(crate) fn build(mut self) -> SymbolTable {
        self.stated
            .sort_unstable_by_key(|stated| (stated.start, Reverse((stated.worth, stated.size, stated.name_offset))));
        self.stated.dedup_by_key(|stated| stated.start);
        let mut ranges = Ranges::default();
        ranges.ranges.reserve(self.stated.len() + self.stated.len() / 8);
        let symbol_of = |stated: &Stated| Symbol {
            start: stated.start,
            name_offset: stated.name_offset,
            name_pool: stated.name_pool,
        };
        // The sized symbols that are open at the current address, the innermost (which began last) on top.
        let mut open: Vec<(u64, Symbol)> = Vec::new();
        for stated in &self.stated {
            close_until(stated.start, &mut open, &mut ranges);
            if stated.size > 0 {
                open.push((stated.start.saturating_add(u64::from(stated.size)), symbol_of(stated)));
                ranges.push(stated.start, symbol_of(stated));
            } else if open.is_empty() {
                ranges.push(stated.start, symbol_of(stated));
            }
        }
        close_until(u64::MAX, &mut open, &mut ranges);
        let summary = Summary::of(&ranges.ranges);
        let named = self.stated.iter().any(|symbol| symbol.name_pool != UNNAMED);
        let mut pools = vec![Bytes::owned(self.made)];
        pools.extend(self.pools);
        SymbolTable { pools, ranges, summary, counts: self.counts, named }
    }
}

/// Ends the sized symbols that end at or before an address, and says who goes on behind them.
fn close_until(address: u64, open: &mut Vec<(u64, Symbol)>, ranges: &mut Ranges) {
    while let Some(&(end, _)) = open.last()
        && end <= address
    {
        while open.last().is_some_and(|&(outer_end, _)| outer_end <= end) {
            open.pop();
        }
        ranges.push(end, open.last().map_or(NOTHING, |&(_, symbol)| symbol));
    }
}

/// What a range of addresses belongs to.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    start: u64,
    name_offset: u32,
    name_pool: u16,
}

const NOTHING: Symbol = Symbol { start: 0, name_offset: 0, name_pool: UNNAMED };

/// A range up to the start of the next. What a lookup needs is side by side: each place in memory that it has to wait for
/// costs more than the search.
#[derive(Clone, Debug)]
struct Range {
    start: u64,
    /// Of the symbol that begins here too; else the number of another symbol ([`Ranges::others`]).
    name_offset_or_number: u32,
    /// [`BEGINS_HERE`], and the pool's number.
    place: u16,
    /// Of the name, once it was asked for: to find a name's end it is read, and then it is read by whoever asked. Those that are
    /// longer, or were not asked for yet, have [`UNKNOWN`].
    name_length: Cell<u16>,
}

const _: () = assert!(size_of::<Range>() == 16);

/// The bit of [`Range::place`] that says that the range's symbol begins where the range does.
const BEGINS_HERE: u16 = 1 << 15;
/// A name's length that is not known.
const UNKNOWN: u16 = u16::MAX;

impl Range {
    fn new(start: u64, name_offset_or_number: u32, pool: u16, begins_here: bool) -> Self {
        let place = pool | if begins_here { BEGINS_HERE } else { 0 };
        Range { start, name_offset_or_number, place, name_length: Cell::new(UNKNOWN) }
    }

    fn pool(&self) -> u16 {
        self.place & !BEGINS_HERE
    }

    fn begins_here(&self) -> bool {
        self.place & BEGINS_HERE != 0
    }
}

/// Disjoint ranges of addresses, and the innermost symbol of each.
#[derive(Debug, Default)]
struct Ranges {
    ranges: Vec<Range>,
    /// Symbols of ranges that begin elsewhere: in the middle of the symbol, behind another that was within it.
    others: Vec<Symbol>,
}

impl Ranges {
    /// Adds a range behind the others; one that begins where the last one does takes its place.
    fn push(&mut self, start: u64, symbol: Symbol) {
        if self.ranges.last().is_some_and(|last| last.start == start) {
            self.ranges.pop();
        }
        let unnamed = symbol.name_pool == UNNAMED;
        // More than four thousand millions of others are left without a name.
        let other = u32::try_from(self.others.len()).ok().filter(|_| !unnamed && symbol.start != start);
        let begins_here = unnamed || symbol.start == start;
        let name_pool = if begins_here || other.is_some() { symbol.name_pool } else { UNNAMED };
        if other.is_some() {
            self.others.push(symbol);
        }
        let name_offset_or_number = other.unwrap_or(symbol.name_offset);
        self.ranges.push(Range::new(start, name_offset_or_number, name_pool, begins_here));
    }

    fn symbol(&self, range: &Range) -> Option<Symbol> {
        if range.begins_here() {
            let (name_offset, name_pool) = (range.name_offset_or_number, range.pool());
            return Some(Symbol { start: range.start, name_offset, name_pool });
        }
        self.others.get(range.name_offset_or_number as usize).copied()
    }
}

/// Entries of a level for which the next one has one: as many as a cache line has of the 4 bytes that each takes. A binary search
/// over hundreds of thousands of starts waits for memory at almost every step, one after another.
const FANOUT: usize = 16;

/// Which sixteen ranges an address falls into: a tree of the ranges' starts, each level the every sixteenth of the one below, in
/// as few cache lines as there are levels. (Four for a million ranges; all but the lowest stay in the fastest cache.)
#[derive(Debug, Default)]
struct Summary {
    /// The first range's start, which the entries are less by.
    base: u64,
    /// The highest first. The lowest has the start of every sixteenth range.
    levels: Vec<Vec<u32>>,
}

impl Summary {
    /// `None` for ranges that begin more than 4 GiB apart, as no program's do.
    fn of(ranges: &[Range]) -> Option<Self> {
        let base = ranges.first()?.start;
        u32::try_from(ranges.last()?.start - base).ok()?;
        // Those between the two fit as well.
        let mut level: Vec<u32> = ranges.iter().step_by(FANOUT).map(|range| (range.start - base) as u32).collect();
        let mut levels = Vec::new();
        while level.len() > 1 {
            let above = level.iter().step_by(FANOUT).copied().collect();
            levels.push(std::mem::replace(&mut level, above));
        }
        levels.reverse();
        Some(Summary { base, levels })
    }

    /// The first of the sixteen ranges among which the last one that begins at or before an address is.
    fn block(&self, address: u64) -> usize {
        let key = u32::try_from(address.saturating_sub(self.base)).unwrap_or(u32::MAX);
        let mut at = 0;
        for level in &self.levels {
            let begin = at * FANOUT;
            let entries = level.get(begin..).unwrap_or_default();
            // All are compared, which is quicker than to find out which of them have to be.
            let before = match entries.first_chunk::<FANOUT>() {
                Some(entries) => entries.iter().map(|&entry| u32::from(entry <= key)).sum::<u32>() as usize,
                None => entries.iter().filter(|&&entry| entry <= key).count(),
            };
            at = begin + before.saturating_sub(1);
        }
        at * FANOUT
    }
}

/// Sorted, disjoint ranges.
#[derive(Debug)]
pub(crate) struct SymbolTable {
    pools: Vec<Bytes>,
    ranges: Ranges,
    /// `None` if there are no ranges, or they are too far apart.
    summary: Option<Summary>,
    counts: BTreeMap<SymbolSource, usize>,
    named: bool,
}

/// A symbol that contains the address that was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found<'a> {
    /// svma
    pub(crate) start: u64,
    /// As the file has it.
    pub(crate) name: &'a [u8],
}

impl SymbolTable {
    pub(crate) fn find(&self, svma: u64) -> Option<Found<'_>> {
        let ranges = self.ranges.ranges.as_slice();
        let (ranges, before) = match &self.summary {
            None => (ranges, ranges.partition_point(|range| range.start <= svma)),
            Some(summary) => {
                let ranges = ranges.get(summary.block(svma)..)?;
                // Side by side, so that the four cache lines are waited for at once.
                let before = match ranges.first_chunk::<FANOUT>() {
                    Some(ranges) => ranges.iter().map(|range| usize::from(range.start <= svma)).sum(),
                    None => ranges.iter().filter(|range| range.start <= svma).count(),
                };
                (ranges, before)
            }
        };
        let range = ranges.get(before.checked_sub(1)?)?;
        let symbol = self.ranges.symbol(range)?;
        // The pool of what has no name is out of range.
        let pool: &[u8] = self.pools.get(usize::from(symbol.name_pool))?;
        let name = pool.get(symbol.name_offset as usize..)?;
        let length = match range.name_length.get() {
            UNKNOWN => {
                let length = memchr::memchr(0, name).unwrap_or(name.len());
                // One that is as long as `UNKNOWN` says, or longer, stays unknown.
                range.name_length.set(u16::try_from(length).unwrap_or(UNKNOWN));
                length
            }
            length => usize::from(length),
        };
        Some(Found { start: symbol.start, name: name.get(..length)? })
    }

    /// How many symbols each source stated, before those of one address were settled.
    pub(crate) fn counts(&self) -> &BTreeMap<SymbolSource, usize> {
        &self.counts
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.named
    }
}

#[cfg(test)]
mod tests;
