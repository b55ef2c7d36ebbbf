//! Nearest-symbol lookup: merges all function boundaries in a file into disjoint ranges.

use std::{cell::Cell, cmp::Reverse, collections::BTreeMap};

use crate::mapped_file::Bytes;

/// The source of a symbol, in increasing order of preference for symbols at the same address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum SymbolSource {
    /// Mach-O `LC_FUNCTION_STARTS`: the start of a function without a name.
    FunctionStarts,
    /// A stub in the procedure linkage table, named after its slot's symbol (`memcpy@plt`).
    Plt,
    /// The Mach-O export trie, or a PE file's exports.
    ExportTrie,
    /// Mach-O Objective-C metadata: a method's implementation (`-[Class selector]`).
    ObjcMetadata,
    /// ELF `.gnu_debugdata`: the functions' `.symtab` that Fedora and Android keep in stripped
    /// files.
    MiniDebugInfo,
    /// ELF `.dynsym`.
    Dynsym,
    /// ELF `.symtab`, or a Mach-O `LC_SYMTAB`.
    Symtab,
    /// A `PUBLIC` or `FUNC` record in a breakpad `.sym` file.
    Breakpad,
    /// The local symbols that a dyld shared cache contains for its images.
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

/// The preference of a symbol by its binding and type, where several symbols start at one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BindingRank {
    /// A label without a type, or data.
    Label,
    Local,
    Weak,
    Global,
}

/// A reference to a name: an offset in one of the table's pools.
///
/// The name ends at the next NUL or the pool's end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NameRef {
    pool: u16,
    offset: u32,
}

/// The pool of names created here; the file's pools are numbered from 1.
const CREATED_NAMES: u16 = 0;
/// The "pool" of symbols without a name: the highest number that fits beside [`BEGINS_HERE`].
const NO_NAME: u16 = (1 << 15) - 1;

/// A symbol or boundary as given in a file. Kept small: hundreds of thousands of them are sorted.
#[derive(Clone, Copy, Debug)]
struct RawSymbol {
    start: u64,
    /// 0 if the file contains no size; the symbol then extends to the next one. Functions are
    /// smaller than 4 GiB.
    size: u32,
    name_offset: u32,
    name_pool: u16,
    /// Preference among symbols at the same address; the highest wins. Compares, in this order:
    /// named or not, with or without a size, source, rank.
    preference: u16,
}

const _: () = assert!(size_of::<RawSymbol>() <= 24);

/// Collects the symbols from all parts of a file; [`TableBuilder::build`] resolves overlaps.
#[derive(Debug)]
pub(crate) struct TableBuilder {
    pools: Vec<Bytes>,
    /// Names that are not in the file: those of PLT stubs and Objective-C methods.
    made: Vec<u8>,
    symbols: Vec<RawSymbol>,
    counts: BTreeMap<SymbolSource, usize>,
    /// Maximum number of bytes for building the table, including the table itself.
    limit: usize,
    overflowed: bool,
}

impl Default for TableBuilder {
    fn default() -> Self {
        Self::with_limit(usize::MAX)
    }
}

/// Bytes needed for one symbol during building.
///
/// A symbol is stored as collected, and as the resulting range (plus an eighth more, for symbols
/// that continue after nested ones).
const SYMBOL_SIZE: usize = size_of::<RawSymbol>() + 2 * size_of::<Range>();

impl TableBuilder {
    /// Creates a builder that uses at most `limit` bytes.
    pub(crate) fn with_limit(limit: usize) -> Self {
        let (pools, made, symbols, counts) = Default::default();
        Self { pools, made, symbols, counts, limit, overflowed: false }
    }

    /// Returns how many more bytes the builder may use.
    pub(crate) fn left(&self) -> usize {
        let held: usize = self.pools.iter().map(Bytes::owned_size).sum();
        let symbols = self.symbols.capacity().saturating_mul(SYMBOL_SIZE);
        self.limit.saturating_sub(held).saturating_sub(self.made.capacity()).saturating_sub(symbols)
    }

    /// Records that something was left out because the limit was reached.
    pub(crate) fn overflow(&mut self) {
        self.overflowed = true;
    }

    /// Whether something was left out because the limit was reached.
    pub(crate) fn overflowed(&self) -> bool {
        self.overflowed
    }

    fn push(&mut self, symbol: RawSymbol) {
        // A full vector doubles its size, and during copying both the old and the new memory are in
        // use.
        let full = self.symbols.len() == self.symbols.capacity();
        if full && self.limit != usize::MAX && self.left() < (self.symbols.capacity() + 64).saturating_mul(SYMBOL_SIZE)
        {
            self.overflowed = true;
            return;
        }
        self.symbols.push(symbol);
    }

    /// Adds a string table for symbols to refer to. Returns `None` if there are already about
    /// 32,000.
    pub(crate) fn pool(&mut self, bytes: Bytes) -> Option<u16> {
        let number = u16::try_from(self.pools.len() + 1).ok().filter(|&number| number < NO_NAME)?;
        self.pools.push(bytes);
        Some(number)
    }

    /// Returns a reference to a name at an offset in a pool. String offsets have 32 bits in both
    /// formats.
    pub(crate) fn name_at(pool: u16, offset: u32) -> NameRef {
        NameRef { pool, offset }
    }

    /// Stores a name that is not in the file. Returns `None` if 4 GiB of them are stored already.
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
        Some(NameRef { pool: CREATED_NAMES, offset })
    }

    pub(crate) fn reserve(&mut self, symbols: usize) {
        if self.limit == usize::MAX {
            self.symbols.reserve(symbols);
        } else if self.left() < symbols.saturating_mul(SYMBOL_SIZE) {
            self.overflowed = true;
        } else {
            self.symbols.reserve_exact(symbols);
        }
    }

    pub(crate) fn add(&mut self, start: u64, size: u64, source: SymbolSource, rank: BindingRank, name: NameRef) {
        let preference = 1 << 15 | u16::from(size > 0) << 14 | (source as u16) << 4 | rank as u16;
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        self.push(RawSymbol { start, size, name_offset: name.offset, name_pool: name.pool, preference });
    }

    /// Adds to the number of symbols from a source.
    pub(crate) fn count(&mut self, source: SymbolSource, symbols: usize) {
        if symbols > 0 {
            *self.counts.entry(source).or_default() += symbols;
        }
    }

    /// Returns how many symbols were added so far, including boundaries.
    pub(crate) fn added(&self) -> usize {
        self.symbols.len()
    }

    /// Adds the start of something unnamed, or the end of a section: symbols without a size end
    /// before it.
    pub(crate) fn boundary(&mut self, at: u64) {
        self.push(RawSymbol { start: at, size: 0, name_offset: 0, name_pool: NO_NAME, preference: 0 });
    }

    pub(crate) fn build(mut self) -> SymbolTable {
        self.symbols.sort_unstable_by_key(|symbol| {
            (symbol.start, Reverse((symbol.preference, symbol.size, symbol.name_offset)))
        });
        self.symbols.dedup_by_key(|symbol| symbol.start);
        let mut ranges = Ranges::default();
        ranges.ranges.reserve(self.symbols.len() + self.symbols.len() / 8);
        let symbol_of = |symbol: &RawSymbol| Symbol {
            start: symbol.start,
            name_offset: symbol.name_offset,
            name_pool: symbol.name_pool,
        };
        // The sized symbols that contain the current address, the innermost (which started last) on
        // top.
        let mut open: Vec<(u64, Symbol)> = Vec::new();
        for symbol in &self.symbols {
            close_until(symbol.start, &mut open, &mut ranges);
            if symbol.size > 0 {
                open.push((symbol.start.saturating_add(u64::from(symbol.size)), symbol_of(symbol)));
                ranges.push(symbol.start, symbol_of(symbol));
            } else if open.is_empty() {
                ranges.push(symbol.start, symbol_of(symbol));
            }
        }
        close_until(u64::MAX, &mut open, &mut ranges);
        let summary = Summary::build(&ranges.ranges);
        let named = self.symbols.iter().any(|symbol| symbol.name_pool != NO_NAME);
        let mut pools = vec![Bytes::owned(self.made)];
        pools.extend(self.pools);
        SymbolTable { pools, ranges, summary, counts: self.counts, named }
    }
}

/// Removes the sized symbols that end at or before an address.
///
/// Adds the ranges in which the enclosing symbols continue.
fn close_until(address: u64, open: &mut Vec<(u64, Symbol)>, ranges: &mut Ranges) {
    while let Some(&(end, _)) = open.last()
        && end <= address
    {
        while open.last().is_some_and(|&(outer_end, _)| outer_end <= end) {
            open.pop();
        }
        ranges.push(end, open.last().map_or(NO_SYMBOL, |&(_, symbol)| symbol));
    }
}

/// The symbol of a range of addresses.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    start: u64,
    name_offset: u32,
    name_pool: u16,
}

const NO_SYMBOL: Symbol = Symbol { start: 0, name_offset: 0, name_pool: NO_NAME };

/// A range that extends to the start of the next one. All data for a lookup is adjacent: each cache
/// miss costs more than the search.
#[derive(Clone, Debug)]
struct Range {
    start: u64,
    /// The name offset of a symbol that starts with this range.
    ///
    /// Otherwise, the index of another symbol ([`Ranges::others`]).
    name_offset_or_number: u32,
    /// [`BEGINS_HERE`] and the pool's number.
    place: u16,
    /// The name's length, cached on first use, because finding a name's end reads all of it.
    /// [`UNKNOWN`] for longer names and for those not used yet.
    name_length: Cell<u16>,
}

const _: () = assert!(size_of::<Range>() == 16);

/// The bit of [`Range::place`] that is set if the range's symbol starts with the range.
const BEGINS_HERE: u16 = 1 << 15;
/// An unknown name length.
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

/// Disjoint ranges of addresses with their innermost symbols.
#[derive(Debug, Default)]
struct Ranges {
    ranges: Vec<Range>,
    /// Symbols of ranges that start inside the symbol, after another symbol nested in it.
    others: Vec<Symbol>,
}

impl Ranges {
    /// Appends a range; it replaces the last one if both start at the same address.
    fn push(&mut self, start: u64, symbol: Symbol) {
        if self.ranges.last().is_some_and(|last| last.start == start) {
            self.ranges.pop();
        }
        let unnamed = symbol.name_pool == NO_NAME;
        // Symbols beyond 2^32 others are left without a name.
        let other = u32::try_from(self.others.len()).ok().filter(|_| !unnamed && symbol.start != start);
        let begins_here = unnamed || symbol.start == start;
        let name_pool = if begins_here || other.is_some() { symbol.name_pool } else { NO_NAME };
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

/// Number of entries in a level for each entry in the next higher one.
///
/// It is the number of 4-byte entries in a cache line. A plain binary search over hundreds of
/// thousands of addresses misses the cache at almost every step.
const FANOUT: usize = 16;

/// A search tree over the ranges' starts that finds an address's block of sixteen ranges. Each
/// level contains every sixteenth entry of the level below, so a lookup touches one cache line per
/// level. (There are four levels for a million ranges; all but the lowest stay in the L1 cache.)
#[derive(Debug, Default)]
struct Summary {
    /// The first range's start, which is subtracted from all entries.
    base: u64,
    /// From the highest to the lowest level. The lowest contains the start of every sixteenth
    /// range.
    levels: Vec<Vec<u32>>,
}

impl Summary {
    /// Builds the tree; `None` if the ranges span more than 4 GiB, which no real program does.
    fn build(ranges: &[Range]) -> Option<Self> {
        let base = ranges.first()?.start;
        u32::try_from(ranges.last()?.start - base).ok()?;
        // The starts between these two fit as well.
        let mut level: Vec<u32> = ranges.iter().step_by(FANOUT).map(|range| (range.start - base) as u32).collect();
        let mut levels = Vec::new();
        while level.len() > 1 {
            let above = level.iter().step_by(FANOUT).copied().collect();
            levels.push(std::mem::replace(&mut level, above));
        }
        levels.reverse();
        Some(Summary { base, levels })
    }

    /// Returns the index of the first range in an address's block of sixteen.
    ///
    /// The block contains the last range that starts at or before the address.
    fn block(&self, address: u64) -> usize {
        let key = u32::try_from(address.saturating_sub(self.base)).unwrap_or(u32::MAX);
        let mut at = 0;
        for level in &self.levels {
            let begin = at * FANOUT;
            let entries = level.get(begin..).unwrap_or_default();
            // Comparing all entries is faster than deciding which ones to compare.
            let before = match entries.first_chunk::<FANOUT>() {
                Some(entries) => entries.iter().map(|&entry| u32::from(entry <= key)).sum::<u32>() as usize,
                None => entries.iter().filter(|&&entry| entry <= key).count(),
            };
            at = begin + before.saturating_sub(1);
        }
        at * FANOUT
    }
}

/// A table of sorted, disjoint ranges.
#[derive(Debug)]
pub(crate) struct SymbolTable {
    pools: Vec<Bytes>,
    ranges: Ranges,
    /// `None` if there are no ranges, or they span too much.
    summary: Option<Summary>,
    counts: BTreeMap<SymbolSource, usize>,
    named: bool,
}

/// The symbol that contains an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found<'a> {
    /// The symbol's start (svma).
    pub(crate) start: u64,
    /// The name as in the file.
    pub(crate) name: &'a [u8],
}

impl SymbolTable {
    pub(crate) fn find(&self, svma: u64) -> Option<Found<'_>> {
        let ranges = self.ranges.ranges.as_slice();
        let (ranges, before) = match &self.summary {
            None => (ranges, ranges.partition_point(|range| range.start <= svma)),
            Some(summary) => {
                let ranges = ranges.get(summary.block(svma)..)?;
                // Read all, so that the four cache lines are loaded in parallel.
                let before = match ranges.first_chunk::<FANOUT>() {
                    Some(ranges) => ranges.iter().map(|range| usize::from(range.start <= svma)).sum(),
                    None => ranges.iter().filter(|range| range.start <= svma).count(),
                };
                (ranges, before)
            }
        };
        let range = ranges.get(before.checked_sub(1)?)?;
        let symbol = self.ranges.symbol(range)?;
        // The pool number of unnamed symbols is out of range.
        let pool: &[u8] = self.pools.get(usize::from(symbol.name_pool))?;
        let name = pool.get(symbol.name_offset as usize..)?;
        let length = match range.name_length.get() {
            UNKNOWN => {
                let length = memchr::memchr(0, name).unwrap_or(name.len());
                // The length `UNKNOWN` and greater ones are not cached.
                range.name_length.set(u16::try_from(length).unwrap_or(UNKNOWN));
                length
            }
            length => usize::from(length),
        };
        Some(Found { start: symbol.start, name: name.get(..length)? })
    }

    /// Returns how many symbols came from each source, before duplicates were resolved.
    pub(crate) fn counts(&self) -> &BTreeMap<SymbolSource, usize> {
        &self.counts
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.named
    }
}

#[cfg(test)]
mod tests;
