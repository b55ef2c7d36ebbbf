//! The C library's message before it called `abort`.
//!
//! This is the text of a failed assertion, of malloc's and FORTIFY's checks, of smashed stacks, of
//! `std::terminate`. It is printed to stderr, which an app usually doesn't have; for debuggers and
//! crash reporters it is left in memory.
//!
//! * **glibc** (since 2.17): `__abort_msg`, version `GLIBC_PRIVATE`, points to `struct abort_msg_s
//!   {unsigned int size; char msg[];}` (include/stdlib.h); it is looked up at install. A program
//!   with glibc linked in (`-static`) has it in its symbol table, if it is not stripped.
//! * **bionic**: `android_set_abort_message` puts `abort_msg_t {size_t size; char msg[];}` into a
//!   mapping of its own, since Android 10 after two magic words. The pointer to it is a variable of
//!   the dynamic linker that isn't exported (`g_abort_message`, later a field of
//!   `libc_shared_globals`), or of the program if that is static. The mapping is so distinctive (at
//!   the start of a page; magic words, or a length that fits to the byte) that its variable is
//!   simply searched for.
//! * musl has no such message.

use crate::images::{Image, ImageKind};
use crate::memory::{Memory, read_text};

/// Maximum size of a message that is kept, in bytes.
pub const MAX_MESSAGE: usize = 4096;

/// The location of the message.
#[derive(Clone, Copy, Debug)]
pub struct AbortMessage {
    /// The address of `__abort_msg`, 0 if there is none.
    #[cfg_attr(target_os = "android", allow(dead_code))]
    glibc: u64,
}

impl AbortMessage {
    /// Looks up glibc's variable (not async-signal-safe).
    pub fn find() -> AbortMessage {
        #[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
        // SAFETY: two strings with their NUL; the function has no other requirements.
        let glibc =
            unsafe { libc::dlvsym(libc::RTLD_DEFAULT, c"__abort_msg".as_ptr(), c"GLIBC_PRIVATE".as_ptr()) } as u64;
        #[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
        let glibc = if glibc == 0 { static_program::find().unwrap_or(0) } else { glibc };
        #[cfg(not(all(target_os = "linux", target_env = "gnu", not(miri))))]
        let glibc = 0;
        AbortMessage { glibc }
    }

    /// Returns the library's name and its message; `None` if there is no message.
    ///
    /// `image` returns the first image of a kind.
    #[cfg(not(target_os = "android"))]
    pub fn read<'b, 'i, M: Memory>(
        self,
        memory: &mut M,
        _image: impl Fn(ImageKind) -> Option<&'i Image>,
        into: &'b mut [u8; MAX_MESSAGE],
    ) -> Option<(&'static [u8], &'b [u8])> {
        let at = Some(self.glibc).filter(|at| *at != 0)?;
        let at = memory.read_u64(at).ok().filter(|at| *at != 0)?;
        let size = memory.read_u64(at).ok()? as u32;
        let room = into.get_mut(..(size as usize).saturating_sub(4).min(MAX_MESSAGE))?;
        let text = read_text(memory, at.wrapping_add(4), room);
        (!text.is_empty()).then_some((b"libc.so.6", text))
    }

    /// Returns the library's name and its message; `None` if there is no message.
    ///
    /// `image` returns the first image of a kind.
    #[cfg(target_os = "android")]
    pub fn read<'b, 'i, M: Memory>(
        self,
        memory: &mut M,
        image: impl Fn(ImageKind) -> Option<&'i Image>,
        into: &'b mut [u8; MAX_MESSAGE],
    ) -> Option<(&'static [u8], &'b [u8])> {
        let at = find_in_variables(memory, image)?;
        let text = read_text(memory, at, into);
        (!text.is_empty()).then_some((b"libc.so", text))
    }
}

/// Finds the variable in the symbol table of a program with glibc linked in.
#[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
mod static_program {
    use crate::files::{Descriptor, open, read_at};
    use crate::memory::{u16_at, u32_at, u64_at};

    const NAME: &[u8] = b"\0__abort_msg\0";
    /// Number of bytes read at once, a multiple of a symbol's size.
    const AT_ONCE: usize = 24 * 256;
    /// Maximum number of bytes of names or symbols read: install waits for it.
    const MOST: u64 = 32 << 20;

    /// A part of the file.
    #[derive(Clone, Copy)]
    struct Part {
        start: u64,
        size: u64,
    }

    impl Part {
        /// Calls `found` with each piece and its offset in the part, until it returns a result.
        ///
        /// Pieces overlap by the length of a name.
        fn search(self, file: &Descriptor, step: usize, found: impl Fn(&[u8], u64) -> Option<u64>) -> Option<u64> {
            let mut bytes = [0; AT_ONCE];
            let size = self.size.min(MOST);
            let mut at = 0;
            while at < size {
                let length = read_at(file, &mut bytes, self.start.checked_add(at)?).ok()?;
                let length = length.min(usize::try_from(size - at).ok()?);
                if let Some(found) = found(bytes.get(..length)?, at) {
                    return Some(found);
                }
                at = at.checked_add(step as u64)?;
            }
            None
        }
    }

    /// Returns the variable's address; `None` also for a stripped program.
    pub(super) fn find() -> Option<u64> {
        let file = open(Descriptor::WORKING_DIRECTORY, c"/proc/self/exe", libc::O_RDONLY, 0).ok()?;
        let found = find_in(&file);
        // SAFETY: reads a word of the vector that the kernel gave the process.
        let entry = unsafe { libc::getauxval(libc::AT_ENTRY) };
        found.map(|(address, entry_in_file)| address.wrapping_add(entry.wrapping_sub(entry_in_file)))
    }

    /// Returns the addresses of the variable and of the entry point, as linked.
    ///
    /// ("System V ABI", chapter 4: file header, section headers, symbols.)
    fn find_in(file: &Descriptor) -> Option<(u64, u64)> {
        const SYMBOLS: u32 = 2;
        let mut header = [0; 64];
        (read_at(file, &mut header, 0).ok()? == header.len() && header.starts_with(b"\x7fELF\x02\x01")).then_some(())?;
        let (entry, sections) = (u64_at(&header, 24), u64_at(&header, 40));
        let (size, count) = (u64::from(u16_at(&header, 58)), u16_at(&header, 60));
        let section = |number: u64| {
            let mut section = [0; 64];
            let at = sections.checked_add(number.checked_mul(size)?)?;
            (read_at(file, &mut section, at).ok()? == section.len()).then_some(section)
        };
        let symbols = (0..count.into()).filter_map(section).find(|section| u32_at(section, 4) == SYMBOLS)?;
        let names = section(u32_at(&symbols, 40).into())?;
        let part = |section: &[u8; 64]| Part { start: u64_at(section, 24), size: u64_at(section, 32) };
        let name = part(&names).search(file, AT_ONCE - NAME.len(), |piece, at| {
            let place = piece.windows(NAME.len()).position(|window| window == NAME)?;
            at.checked_add(place as u64 + 1)
        })?;
        let address = part(&symbols).search(file, AT_ONCE, |piece, _| {
            let symbols = piece.as_chunks::<24>().0;
            let found =
                symbols.iter().find(|symbol| u64::from(u32_at(*symbol, 0)) == name && u64_at(*symbol, 8) != 0)?;
            Some(u64_at(found, 8))
        })?;
        Some((address, entry))
    }
}

/// Returns the address of bionic's message.
#[cfg(target_os = "android")]
fn find_in_variables<'i, M: Memory>(memory: &mut M, of_kind: impl Fn(ImageKind) -> Option<&'i Image>) -> Option<u64> {
    use crate::elf::{FileHeader, PT_GNU_RELRO};
    use crate::images::Segment;
    const PF_W: u32 = 2;
    /// Maximum number of bytes searched in a segment.
    ///
    /// The linker's variables are some 100 KiB, but a static program's may have any size.
    const MAX_BYTES: u64 = 1 << 20;
    // The kernel maps the linker where it maps everything without a fixed address, including the
    // message; a static program is elsewhere.
    let linker = of_kind(ImageKind::DynamicLinker);
    let near = linker.map(|linker| linker.range.start);
    let image = linker.or_else(|| of_kind(ImageKind::Main))?;
    let table = FileHeader::read(memory, image.range.start).map(|file| file.headers(image.range.start));
    let relro = table.and_then(|table| table.find(memory, PT_GNU_RELRO)).unwrap_or_default();
    // The protected part holds many addresses, none of which was stored after relocation.
    let protected = relro.address.wrapping_add(image.slide);
    let protected = protected..protected.saturating_add(relro.memory_size);
    let writable = |segment: &&Segment| segment.flags & PF_W != 0;
    for segment in image.segments().iter().filter(writable) {
        let range = image.segment_range(segment);
        let is_protected = protected.contains(&range.start);
        let start = if is_protected { protected.end } else { range.start }.next_multiple_of(8);
        let end = range.end.min(start.saturating_add(MAX_BYTES));
        if let Some(found) = find_in_words(memory, (start, end), near) {
            return Some(found);
        }
    }
    None
}

/// The smallest page size: larger pages start at its multiples, too.
#[cfg(any(target_os = "android", test))]
const PAGE: u64 = 0x1000;

/// Size of the magic words, after which the pointer points.
#[cfg(any(target_os = "android", test))]
const MAGIC_SIZE: u64 = 16;

/// Returns the first message that a word in that range points to, `near` it if given.
///
/// Of the other words that could be a page address, most are two small numbers, and each would cost
/// a fault.
///
/// Not inlined, so that `xtask signal-safety` knows its loop by name.
#[cfg(any(target_os = "android", test))]
#[inline(never)]
fn find_in_words<M: Memory>(memory: &mut M, (start, end): (u64, u64), near: Option<u64>) -> Option<u64> {
    const AT_ONCE: usize = 64;
    /// Maximum distance from `near`.
    ///
    /// A small mapping is put into the highest gap, and an address space has 512 GiB or more.
    const MAX_DISTANCE: u64 = 1 << 38;
    let mut at = start;
    while at.wrapping_add(8) <= end {
        let mut words = [[0; 8]; AT_ONCE];
        let count = ((end.wrapping_sub(at) / 8) as usize).min(AT_ONCE);
        let piece = words.get_mut(..count).unwrap_or_default();
        // Unreadable pieces (such as a page without access) are skipped.
        if memory.read(at, piece.as_flattened_mut()).is_ok() {
            for word in piece.iter() {
                let word = u64::from_le_bytes(*word);
                if word < PAGE || !matches!(word % PAGE, 0 | MAGIC_SIZE) {
                    continue;
                }
                let is_near = near.is_none_or(|near| word.abs_diff(near) < MAX_DISTANCE);
                if is_near && let Some(text) = message_at(memory, word) {
                    return Some(text);
                }
            }
        }
        at = at.wrapping_add((count as u64).wrapping_mul(8));
    }
    None
}

/// Returns the address of the text if an `abort_msg_t` is at `at`.
///
/// `at` is the start of a page or [`MAGIC_SIZE`] after it. (android_set_abort_message.cpp in
/// bionic, with and without magic words.)
#[cfg(any(target_os = "android", test))]
fn message_at<M: Memory>(memory: &mut M, at: u64) -> Option<u64> {
    const MAGIC: (u64, u64) = (0xb18e_4088_6ac3_88f0, 0xc6df_ba75_5a1d_e0b5);
    /// Maximum size of a message, longer than any in practice.
    const MAX_SIZE: u64 = 1 << 20;
    // The bytes before are the magic words or nothing.
    let before = at % PAGE;
    if before == MAGIC_SIZE && memory.read_pair(at.wrapping_sub(MAGIC_SIZE)).ok()? != MAGIC {
        return None;
    }
    // The size includes the magic words, the size itself, the text and its NUL.
    let size = memory.read_u64(at).ok()?.checked_sub(before)?;
    if !(8 + 2..=MAX_SIZE).contains(&size) {
        return None;
    }
    let text = at.wrapping_add(8);
    let mut last = [0; 2];
    memory.read(at.wrapping_add(size).wrapping_sub(2), &mut last).ok()?;
    // Other pages may begin with a small number, too: check that it is a text.
    let mut beginning = [0; 64];
    let beginning = beginning.get_mut(..(size as usize).wrapping_sub(9).min(64))?;
    memory.read(text, beginning).ok()?;
    let is_of_text = |byte: &u8| !byte.is_ascii_control() || matches!(byte, b'\t' | b'\n' | b'\r');
    (beginning.iter().all(is_of_text) && last[0] != 0 && last[1] == 0).then_some(text)
}

#[cfg(test)]
mod tests;
