//! Looks up the address of a loaded image's exported symbol by its hash table, like dlsym(3).
//!
//! Unlike dlsym, it reads memory of the caller's choice, takes no lock, and works for images that a
//! namespace of the dynamic linker hides.

use super::Image;
use crate::memory::Memory;

const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;

/// Maximum number of dynamic section entries, and of symbols in one bucket, that are read.
const MAX_ENTRIES: u64 = 1024;
/// Maximum length of a name to look up, with its NUL.
const MAX_NAME: usize = 64;

#[derive(Clone, Copy, Debug, Default)]
struct Tables {
    symbols: u64,
    strings: u64,
    hash: u64,
    gnu_hash: u64,
}

impl Image {
    /// Returns the address of the symbol of that name, if this image defines and exports it.
    ///
    /// `None` also if the image has no hash table, or if its tables can't be read.
    /// Async-signal-safe if `memory` is.
    pub fn dynamic_symbol<M: Memory>(&self, memory: &mut M, name: &str) -> Option<u64> {
        let tables = self.symbol_tables(memory)?;
        let of_gnu = if tables.gnu_hash == 0 { None } else { tables.by_gnu_hash(memory, name) };
        let found = match of_gnu {
            None if tables.hash != 0 => tables.by_hash(memory, name),
            found => found,
        };
        found.map(|value| value.wrapping_add(self.slide))
    }

    /// Whether the image was linked with the library that was loaded from `path`, by the file's
    /// name.
    pub fn needs<M: Memory>(&self, memory: &mut M, path: &[u8]) -> bool {
        let Some(tables) = self.symbol_tables(memory) else { return false };
        let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        for index in 0..MAX_ENTRIES {
            let at = self.dynamic.wrapping_add(index.wrapping_mul(16));
            let Ok((tag, value)) = memory.read_pair(at) else { return false };
            if tag == DT_NULL {
                return false;
            }
            let mut bytes = [0_u8; MAX_NAME];
            if tag == DT_NEEDED
                && let Some(read) = bytes.get_mut(..file.len().saturating_add(1))
                && memory.read(tables.strings.wrapping_add(value), read).is_ok()
                && read.split_last() == Some((&0, file))
            {
                return true;
            }
        }
        false
    }

    #[inline(never)]
    fn symbol_tables<M: Memory>(&self, memory: &mut M) -> Option<Tables> {
        if self.dynamic == 0 {
            return None;
        }
        let mut tables = Tables::default();
        for index in 0..MAX_ENTRIES {
            let (tag, value) = memory.read_pair(self.dynamic.wrapping_add(index.wrapping_mul(16))).ok()?;
            // glibc has turned most processors' entries into addresses; other C libraries leave
            // them as linked.
            let address = if self.range.contains(value) { value } else { value.wrapping_add(self.slide) };
            match tag {
                DT_NULL => break,
                DT_HASH => tables.hash = address,
                DT_STRTAB => tables.strings = address,
                DT_SYMTAB => tables.symbols = address,
                DT_GNU_HASH => tables.gnu_hash = address,
                _ => {}
            }
        }
        (tables.symbols != 0 && tables.strings != 0).then_some(tables)
    }
}

/// Reads a 32-bit entry of a table.
///
/// Not inlined, like the others here, so that `xtask signal-safety` can follow the calls: if a
/// function has several of the same, the compiler keeps the address in a register.
#[inline(never)]
fn read_u32<M: Memory>(memory: &mut M, table: u64, index: u64) -> Option<u32> {
    let mut bytes = [0; 4];
    memory.read(table.wrapping_add(index.wrapping_mul(4)), &mut bytes).ok()?;
    Some(u32::from_le_bytes(bytes))
}

impl Tables {
    /// Looks up a name in `DT_GNU_HASH`.
    ///
    /// {u32 buckets, u32 first symbol, u32 words of the filter, u32 shift, u64 filter[], u32
    /// bucket[], u32 chain[]}, where an odd hash ends a bucket's chain.
    #[inline(never)]
    fn by_gnu_hash<M: Memory>(&self, memory: &mut M, name: &str) -> Option<u64> {
        let mut hash = 5381_u32;
        for byte in name.bytes() {
            hash = hash.wrapping_mul(33).wrapping_add(byte.into());
        }
        let mut header = [[0; 4]; 3];
        memory.read(self.gnu_hash, header.as_flattened_mut()).ok()?;
        let [bucket_count, first, filter_words] = header.map(u32::from_le_bytes);
        let buckets = self.gnu_hash.wrapping_add(16).wrapping_add(u64::from(filter_words).wrapping_mul(8));
        let chains = buckets.wrapping_add(u64::from(bucket_count).wrapping_mul(4));
        let mut symbol = read_u32(memory, buckets, hash.checked_rem(bucket_count)?.into())?;
        for _ in 0..MAX_ENTRIES {
            let chained = read_u32(memory, chains, symbol.checked_sub(first)?.into())?;
            if chained | 1 == hash | 1
                && let Some(value) = self.value(memory, symbol, name)
            {
                return Some(value);
            }
            if chained & 1 != 0 {
                break;
            }
            symbol = symbol.checked_add(1)?;
        }
        None
    }

    /// Looks up a name in `DT_HASH` of the System V ABI.
    ///
    /// {u32 buckets, u32 symbols, u32 bucket[], u32 chain[]}, where 0 ends a chain.
    #[inline(never)]
    fn by_hash<M: Memory>(&self, memory: &mut M, name: &str) -> Option<u64> {
        let mut hash = 0_u32;
        for byte in name.bytes() {
            hash = hash.wrapping_shl(4).wrapping_add(byte.into());
            hash ^= hash >> 24 & 0xf0;
            hash &= 0x0fff_ffff;
        }
        let mut bucket_count = [0; 4];
        memory.read(self.hash, &mut bucket_count).ok()?;
        let bucket_count = u32::from_le_bytes(bucket_count);
        let bucket = u64::from(hash.checked_rem(bucket_count)?).wrapping_add(2);
        let mut symbol = read_u32(memory, self.hash, bucket)?;
        for _ in 0..MAX_ENTRIES {
            if symbol == 0 {
                break;
            }
            if let Some(value) = self.value(memory, symbol, name) {
                return Some(value);
            }
            let chain = u64::from(symbol).wrapping_add(2).wrapping_add(bucket_count.into());
            symbol = read_u32(memory, self.hash, chain)?;
        }
        None
    }

    /// Returns the value of a symbol (`Elf64_Sym`), if it has this name and is defined.
    #[inline(never)]
    fn value<M: Memory>(&self, memory: &mut M, symbol: u32, name: &str) -> Option<u64> {
        let at = self.symbols.wrapping_add(u64::from(symbol).wrapping_mul(24));
        let (start, value) = memory.read_pair(at).ok()?;
        let mut bytes = [0_u8; MAX_NAME];
        let read = bytes.get_mut(..name.len().checked_add(1)?)?;
        memory.read(self.strings.wrapping_add(u64::from(start as u32)), read).ok()?;
        let is_defined = start >> 48 != 0;
        (is_defined && read.split_last() == Some((&0, name.as_bytes()))).then_some(value)
    }
}
