//! The dynamic linker's list for debuggers, and the program headers of its images.
//!
//! Every address comes from memory that may be corrupt, and is read only through the caller's
//! [`Memory`]: l_addr is not an address in an image that was linked to a base other than 0, and an
//! ELF header may not be mapped at all.
//!
//! `struct r_debug {int r_version; struct link_map *r_map; ElfW(Addr) r_brk; int r_state;
//! ElfW(Addr) r_ldbase;}`, followed in version 2 (glibc 2.35, for dlmopen) by `struct
//! r_debug_extended *r_next`; `struct link_map {ElfW(Addr) l_addr; char *l_name; ElfW(Dyn) *l_ld;
//! struct link_map *l_next, *l_prev;}` (`link.h`).

use super::mappings;
use crate::elf::{self, FileHeader, HeaderTable};
use crate::memory::Memory;

/// State in which the dynamic linker's list was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListState {
    /// There is no list: a static program, or the dynamic linker has not begun.
    #[default]
    Absent,
    /// The list was read from end to end, and no change was in progress.
    Consistent,
    /// The list was read from end to end, while the dynamic linker had marked it as changing.
    Changing,
    /// The list could not be read to its end; what was read counts.
    Broken,
}

/// `RT_CONSISTENT`: no change is in progress.
const RT_CONSISTENT: u32 = 0;

/// Maximum number of namespaces read (glibc has 16).
const MAX_NAMESPACES: usize = 64;

/// Maximum number of walks along a chain that changes concurrently.
const WALKS: u32 = 4;

/// Number of bytes of a name that are read at once.
pub(super) const NAME_PIECE: usize = 64;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LinkMap {
    pub(super) at: u64,
    /// `l_addr`.
    pub(super) slide: u64,
    /// `l_name`: the address of the name.
    pub(super) name: u64,
    /// `l_ld`.
    pub(super) dynamic: u64,
    next: u64,
    previous: u64,
}

impl LinkMap {
    pub(super) fn read<M: Memory>(memory: &mut M, at: u64) -> Option<LinkMap> {
        // By words and not as one piece: a guarded load costs a nanosecond, a copy of any size tens
        // of them.
        let (slide, name) = memory.read_pair(at).ok()?;
        let (dynamic, next) = memory.read_pair(at.wrapping_add(16)).ok()?;
        let previous = memory.read_u64(at.wrapping_add(32)).ok()?;
        Some(LinkMap { at, slide, name, dynamic, next, previous })
    }

    /// Whether the entry is unchanged (its links may change).
    pub(super) fn is_unchanged<M: Memory>(&self, memory: &mut M) -> bool {
        LinkMap::read(memory, self.at)
            .is_some_and(|now| now.slide == self.slide && now.name == self.name && now.dynamic == self.dynamic)
    }
}

/// Computes [`fingerprint`](super::fingerprint) from the list's entries and its state.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fingerprint(u64);

impl Fingerprint {
    pub(super) fn new(debug: u64) -> Self {
        Self(debug)
    }

    pub(super) fn add(&mut self, entry: &LinkMap) {
        for word in [entry.at, entry.slide, entry.dynamic] {
            self.mix(word);
        }
    }

    pub(super) fn finish(mut self, list: ListState) -> u64 {
        if matches!(list, ListState::Changing | ListState::Broken) {
            self.mix(1);
        }
        self.0
    }

    fn mix(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

/// Calls `each` with the entries of all namespaces; an entry may come twice.
///
/// No chain is followed beyond `most` entries.
pub(super) fn walk<M: Memory>(
    memory: &mut M,
    debug: u64,
    most: usize,
    mut each: impl FnMut(&mut M, &LinkMap),
) -> ListState {
    let mut at = debug;
    let mut state = ListState::Absent;
    for _ in 0..MAX_NAMESPACES {
        if at == 0 {
            break;
        }
        let mut words = [[0; 8]; 4];
        if memory.read(at, words.as_flattened_mut()).is_err() {
            return ListState::Broken;
        }
        let [version, head, _, changing] = words.map(u64::from_le_bytes);
        let walked = if !walk_chain(memory, head, most, &mut each) {
            ListState::Broken
        } else if changing as u32 == RT_CONSISTENT {
            ListState::Consistent
        } else {
            ListState::Changing
        };
        state = match (state, walked) {
            (ListState::Broken, _) | (_, ListState::Broken) => ListState::Broken,
            (ListState::Changing, _) | (_, ListState::Changing) => ListState::Changing,
            (_, walked) => walked,
        };
        if (version as u32) < 2 {
            break;
        }
        at = memory.read_u64(at.wrapping_add(40)).unwrap_or(0);
    }
    state
}

/// Walks one namespace's chain; returns whether it was whole.
fn walk_chain<M: Memory>(memory: &mut M, head: u64, most: usize, each: &mut impl FnMut(&mut M, &LinkMap)) -> bool {
    for left in (0..WALKS).rev() {
        let (mut at, mut previous) = (head, 0);
        let mut whole = true;
        memory.forget();
        // A cycle returns to the last entry whose number was a power of two (Brent).
        let mut milestone = 0;
        for number in 1..=most {
            if at == 0 || at == milestone {
                break;
            }
            if number.is_power_of_two() {
                milestone = at;
            }
            let Some(entry) = LinkMap::read(memory, at) else {
                whole = false;
                break;
            };
            if entry.previous != previous {
                // Entries were added or removed here, or this one was freed meanwhile: begin again.
                // In a stopped process it doesn't change, so the last walk accepts it.
                whole = false;
                if left > 0 {
                    break;
                }
            }
            each(memory, &entry);
            (previous, at) = (at, entry.next);
        }
        if whole {
            // A cycle that the back links hide, or more images than any process has.
            return at == 0;
        }
    }
    false
}

/// Reads a piece of a name, up to its NUL or the end of the page.
///
/// No more is read than must be there. Returns the bytes and whether the name ends with them.
pub(super) fn read_name_piece<'p, M: Memory>(
    memory: &mut M,
    at: u64,
    piece: &'p mut [u8; NAME_PIECE],
) -> Option<(&'p [u8], bool)> {
    let to_page_end = 4096_u64.wrapping_sub(at & 4095);
    let count = to_page_end.min(NAME_PIECE as u64) as usize;
    let bytes = piece.get_mut(..count)?;
    memory.read(at, bytes).ok()?;
    let bytes = piece.get(..count)?;
    match bytes.iter().position(|byte| *byte == 0) {
        Some(end) => Some((bytes.get(..end)?, true)),
        None => Some((bytes, false)),
    }
}

/// Whether the name at `at` is exactly `name`.
pub(super) fn is_named<M: Memory>(memory: &mut M, mut at: u64, name: &[u8]) -> bool {
    let mut rest = name;
    loop {
        let mut piece = [0; NAME_PIECE];
        let Some((bytes, ended)) = read_name_piece(memory, at, &mut piece) else { return false };
        let Some(after) = rest.strip_prefix(bytes) else { return false };
        if ended {
            return after.is_empty();
        }
        rest = after;
        at = at.saturating_add(bytes.len() as u64);
    }
}

/// Maximum number of mappings of an image's file that are examined.
const MAX_STARTS: usize = 64;

/// Whether a header table belongs to an entry's image: it must lead to the entry's dynamic section.
fn is_of<M: Memory>(memory: &mut M, entry: &LinkMap, table: &HeaderTable) -> bool {
    table.find(memory, elf::PT_DYNAMIC).is_some_and(|at| at.address.wrapping_add(entry.slide) == entry.dynamic)
}

/// Returns the program headers of an entry's image.
///
/// `None` if that image is not there, or its headers are not in memory. `ask` is called for headers
/// that the entry doesn't lead to; `searches` counts down how often that is allowed.
pub(super) fn find_headers<M: Memory>(
    memory: &mut M,
    entry: &LinkMap,
    searches: &mut u32,
    ask: impl FnOnce(&mut M, &LinkMap) -> Option<HeaderTable>,
) -> Option<HeaderTable> {
    let headers_at = |memory: &mut M, at| Some(FileHeader::read(memory, at)?.headers(at));
    if let Some(table) = headers_at(memory, entry.slide)
        && is_of(memory, entry, &table)
    {
        return Some(table);
    }
    // Linked to start at an address other than 0 (prelink, linker scripts, Android's packed
    // relocations), or without an ELF header in memory. But if the dynamic section is gone, so is
    // the image.
    memory.read_u64(entry.dynamic).ok()?;
    *searches = searches.checked_sub(1)?;
    if let Some(table) = ask(memory, entry) {
        return Some(table);
    }
    let mut starts = [0; MAX_STARTS];
    let starts = mappings::starts_of_file_at(entry.dynamic, &mut starts).ok()?;
    // Nearest first: in an archive that contains several libraries, the one that contains the
    // dynamic section.
    for start in starts.iter().rev() {
        if let Some(table) = headers_at(memory, *start)
            && is_of(memory, entry, &table)
        {
            return Some(table);
        }
    }
    None
}

/// Returns the program headers of an entry's image from dl_iterate_phdr(3).
///
/// It also knows headers that are in no mapping of the file. Not async-signal-safe: it takes the
/// dynamic linker's lock.
pub(super) fn headers_by_linker<M: Memory>(memory: &mut M, entry: &LinkMap) -> Option<HeaderTable> {
    struct Search<'a, M> {
        memory: &'a mut M,
        entry: &'a LinkMap,
        found: Option<HeaderTable>,
    }
    #[allow(clippy::unnecessary_cast, reason = "the types differ between C libraries")]
    unsafe extern "C" fn each<M: Memory>(
        info: *mut libc::dl_phdr_info,
        _: libc::size_t,
        search: *mut libc::c_void,
    ) -> libc::c_int {
        // SAFETY: the C library passes a valid structure and the pointer of the call below, which
        // waits for this one.
        let (info, search) = unsafe { (&*info, &mut *search.cast::<Search<'_, M>>()) };
        let table = HeaderTable { address: info.dlpi_phdr as u64, count: info.dlpi_phnum };
        if info.dlpi_addr as u64 == search.entry.slide && is_of(search.memory, search.entry, &table) {
            search.found = Some(table);
        }
        libc::c_int::from(search.found.is_some())
    }
    let mut search = Search { memory, entry, found: None };
    // SAFETY: the function accepts these arguments, and does not unwind.
    unsafe { libc::dl_iterate_phdr(Some(each::<M>), (&raw mut search).cast()) };
    search.found
}
