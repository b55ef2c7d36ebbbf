//! 64-bit Mach-O: where its tables are, its `nlist` symbols, function starts and sections, in memory or in a file.
//!
//! Source: Apple's `mach-o/loader.h`, `mach-o/nlist.h`, `mach-o/stab.h`.

use coroner_machine::memory::Memory;

use crate::{CHUNK, Extent, Problem, ScanError, Window};

const MH_MAGIC_64: u32 = 0xfeed_facf;
const LC_SYMTAB: u32 = 0x2;
const LC_SEGMENT_64: u32 = 0x19;
const LC_UUID: u32 = 0x1b;
const LC_DYLD_INFO: u32 = 0x22;
const LC_DYLD_INFO_ONLY: u32 = 0x8000_0022;
const LC_FUNCTION_STARTS: u32 = 0x26;
const LC_DYLD_EXPORTS_TRIE: u32 = 0x8000_0033;
const LC_DYLD_CHAINED_FIXUPS: u32 = 0x8000_0034;
/// Size of a `mach_header_64`.
const HEADER: u64 = 32;
/// Size of an `nlist_64`.
const NLIST: usize = 16;
const SEGMENT: u64 = 72;
const SECTION: u64 = 80;
/// The most load commands that are looked at; the largest programs have some hundreds.
const MOST_COMMANDS: u32 = 4096;

/// How an image lies in what it is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// As dyld mapped it: tables are found by the addresses of `__LINKEDIT`.
    Loaded,
    /// As a file, or a slice of a fat one, of this size: tables are found by their offsets.
    File {
        /// In bytes.
        size: u64,
    },
}

/// A 64-bit Mach-O image and where its tables are, in the address space of the [`Memory`] that it was read through. Tables
/// that it doesn't have are empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachO {
    /// Where the header is.
    pub header: u64,
    /// The svma of `__TEXT`: where the header would be without a slide.
    pub text_svma: u64,
    /// The size of `__TEXT` in memory.
    pub text_size: u64,
    /// `LC_UUID`.
    pub uuid: Option<[u8; 16]>,
    /// `cputype` of the header: 0x0100_000c arm64, 0x0100_0007 x86_64.
    pub cpu_type: u32,
    /// `LC_SYMTAB`: the `nlist_64` table.
    pub symbols: Extent,
    /// `LC_SYMTAB`: the strings.
    pub strings: Extent,
    /// `LC_FUNCTION_STARTS`.
    pub function_starts: Extent,
    /// `LC_DYLD_EXPORTS_TRIE`, or the export part of `LC_DYLD_INFO`.
    pub export_trie: Extent,
    /// `LC_DYLD_CHAINED_FIXUPS`.
    pub chained_fixups: Extent,
    /// Where its last segment ends in the file, counted from the header.
    pub file_end: u64,
    /// The load commands behind the header.
    commands: Extent,
    command_count: u32,
    placement: Placement,
    /// `__LINKEDIT`: address in memory (svma), size there, offset in the file.
    linkedit: (u64, u64, u64),
}

/// A symbol of `LC_SYMTAB` that is defined in a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nlist {
    /// Its address.
    pub svma: u64,
    /// Offset in the strings. Names have an underscore before them that the source doesn't have.
    pub name: u32,
    /// `n_type`: 1 is the external bit.
    pub kind: u8,
    /// `n_sect`: the ordinal, from 1, of its section.
    pub section: u8,
    /// `n_desc`: 0x80 weak definition, 0x200 alternate entry.
    pub description: u16,
}

impl Nlist {
    /// How much the symbol's name is worth among several of one address: the exported one is what people know; an
    /// alternate entry (`N_ALT_ENTRY`) is a label inside of a function.
    pub fn rank(&self) -> u8 {
        let external = self.kind & 1 != 0;
        let weak = self.description & 0x80 != 0;
        let alternate = self.description & 0x200 != 0;
        match (alternate, external, weak) {
            (true, ..) => 2,
            (false, false, _) => 3,
            (false, true, true) => 4,
            (false, true, false) => 5,
        }
    }
}

/// A section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// `segname`, NUL-padded.
    pub segment: [u8; 16],
    /// `sectname`, NUL-padded.
    pub name: [u8; 16],
    /// Its address.
    pub svma: u64,
    /// In memory.
    pub size: u64,
    /// Offset in the file, from the header.
    pub file_offset: u32,
    /// Type and attributes.
    pub flags: u32,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |field| u32::from_le_bytes(*field))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |field| u64::from_le_bytes(*field))
}

impl MachO {
    /// Reads the header and load commands at `header`.
    ///
    /// # Errors
    /// [`ScanError`], offsets counted from the header.
    pub fn read<M: Memory>(memory: &mut M, header: u64, placement: Placement) -> Result<Self, ScanError> {
        let size = match placement {
            Placement::File { size } => size,
            // The commands follow the header, and lie in `__TEXT`; its size isn't known yet.
            Placement::Loaded => u64::MAX.wrapping_sub(header),
        };
        let whole = Extent { address: header, size };
        let fields: [u8; 32] = whole.array(memory, 0)?;
        if u32_at(&fields, 0) != MH_MAGIC_64 {
            return Err(ScanError { offset: 0, problem: Problem::NotThisFormat });
        }
        let command_count = u32_at(&fields, 16);
        let commands_size = u64::from(u32_at(&fields, 20));
        // A command has 8 bytes at least.
        if command_count > MOST_COMMANDS || u64::from(command_count).saturating_mul(8) > commands_size {
            return Err(ScanError { offset: 16, problem: Problem::BadHeader });
        }
        let commands =
            whole.part(HEADER, commands_size).ok_or(ScanError { offset: 20, problem: Problem::BeyondEnd })?;
        let none = Extent { address: 0, size: 0 };
        let mut image = Self {
            header,
            text_svma: 0,
            text_size: 0,
            uuid: None,
            cpu_type: u32_at(&fields, 4),
            symbols: none,
            strings: none,
            function_starts: none,
            export_trie: none,
            chained_fixups: none,
            file_end: 0,
            commands,
            command_count,
            placement,
            linkedit: (0, 0, 0),
        };
        // Two passes: `LC_SYMTAB` may stand before the segment that its offsets are resolved by.
        let (mut text, mut linkedit, mut file_end) = (None, None, 0u64);
        image.for_each_command(memory, |memory, kind, command| {
            if kind == LC_SEGMENT_64 {
                let segment: [u8; 56] = command.array(memory, 0)?;
                let place = (u64_at(&segment, 24), u64_at(&segment, 32), u64_at(&segment, 40));
                file_end = file_end.max(u64_at(&segment, 40).saturating_add(u64_at(&segment, 48)));
                match segment.get(8..24) {
                    Some(b"__TEXT\0\0\0\0\0\0\0\0\0\0") => text = Some(place),
                    Some(b"__LINKEDIT\0\0\0\0\0\0") => linkedit = Some(place),
                    _ => {}
                }
            }
            Ok(())
        })?;
        // A dSYM has all segments; only an object file, which is no image, has no `__TEXT`.
        (image.text_svma, image.text_size, _) = text.ok_or(ScanError { offset: 16, problem: Problem::BadHeader })?;
        image.file_end = file_end;
        image.linkedit = linkedit.unwrap_or((0, 0, 0));
        image.read_tables(memory)?;
        Ok(image)
    }

    fn read_tables<M: Memory>(&mut self, memory: &mut M) -> Result<(), ScanError> {
        let mut found = *self;
        self.for_each_command(memory, |memory, kind, command| {
            // Each of these has its offset and size, or two pairs of them, in the first 48 bytes.
            let field =
                |memory: &mut M, at: u64| command.array(memory, at).map(|bytes: [u8; 4]| u32::from_le_bytes(bytes));
            let mut table = |at: u64, each: u64| -> Result<Extent, ScanError> {
                let (offset, count) = (field(memory, at)?, field(memory, at.saturating_add(4))?);
                found
                    .table(u64::from(offset), u64::from(count).saturating_mul(each))
                    // Told by the place of the command that says so.
                    .ok_or(ScanError { offset: at, problem: Problem::BeyondEnd })
            };
            match kind {
                LC_SYMTAB => {
                    let (symbols, strings) = (table(8, NLIST as u64)?, table(16, 1)?);
                    (found.symbols, found.strings) = (symbols, strings);
                }
                LC_FUNCTION_STARTS => found.function_starts = table(8, 1)?,
                LC_DYLD_EXPORTS_TRIE => found.export_trie = table(8, 1)?,
                LC_DYLD_INFO | LC_DYLD_INFO_ONLY => {
                    let exports = table(40, 1)?;
                    if exports.size > 0 {
                        found.export_trie = exports;
                    }
                }
                LC_DYLD_CHAINED_FIXUPS => found.chained_fixups = table(8, 1)?,
                LC_UUID => found.uuid = Some(command.array(memory, 8)?),
                _ => {}
            }
            Ok(())
        })?;
        *self = found;
        Ok(())
    }

    /// Where the bytes of a table are that a load command places at an offset of the file.
    fn table(&self, offset: u64, size: u64) -> Option<Extent> {
        if size == 0 {
            return Some(Extent { address: 0, size: 0 });
        }
        match self.placement {
            Placement::File { size: whole } => Extent { address: self.header, size: whole }.part(offset, size),
            Placement::Loaded => {
                let (svma, linkedit_size, file_offset) = self.linkedit;
                let linkedit = Extent { address: svma.wrapping_add(self.slide()), size: linkedit_size };
                linkedit.part(offset.checked_sub(file_offset)?, size)
            }
        }
    }

    /// What is added to svmas in the memory that the image was read through; meaningless for a file.
    pub fn slide(&self) -> u64 {
        self.header.wrapping_sub(self.text_svma)
    }

    /// Every load command: its kind, and its bytes, the first eight of which are kind and size. Errors are counted from the
    /// header.
    fn for_each_command<M: Memory>(
        &self,
        memory: &mut M,
        mut each: impl FnMut(&mut M, u32, Extent) -> Result<(), ScanError>,
    ) -> Result<(), ScanError> {
        let mut at = 0u64;
        for _ in 0..self.command_count {
            let from_header = |error: ScanError| ScanError {
                offset: error.offset.saturating_add(at).saturating_add(HEADER),
                ..error
            };
            let fields: [u8; 8] = self
                .commands
                .array(memory, at)
                .map_err(|error| ScanError { offset: error.offset.saturating_add(HEADER), ..error })?;
            let size = u64::from(u32_at(&fields, 4));
            if size < 8 {
                return Err(from_header(ScanError { offset: 4, problem: Problem::BadHeader }));
            }
            let command = self
                .commands
                .part(at, size)
                .ok_or(from_header(ScanError { offset: 4, problem: Problem::BeyondEnd }))?;
            each(memory, u32_at(&fields, 0), command).map_err(from_header)?;
            at = at.saturating_add(size);
        }
        Ok(())
    }

    /// Every section of every segment, in the order of their ordinals.
    ///
    /// # Errors
    /// [`ScanError`], offsets counted from the header.
    pub fn for_each_section<M: Memory>(&self, memory: &mut M, mut each: impl FnMut(Section)) -> Result<(), ScanError> {
        self.for_each_command(memory, |memory, kind, command| {
            if kind != LC_SEGMENT_64 {
                return Ok(());
            }
            let count: [u8; 4] = command.array(memory, 64)?;
            for index in 0..u64::from(u32::from_le_bytes(count)) {
                // Ends at the command's end at the latest.
                let at = SEGMENT.saturating_add(index.saturating_mul(SECTION));
                let bytes: [u8; 68] = command.array(memory, at)?;
                let (name, rest) = split16(&bytes);
                let (segment, _) = split16(rest);
                each(Section {
                    segment,
                    name,
                    svma: u64_at(&bytes, 32),
                    size: u64_at(&bytes, 40),
                    file_offset: u32_at(&bytes, 48),
                    flags: u32_at(&bytes, 64),
                });
            }
            Ok(())
        })
    }

    /// Every symbol that is defined in a section. Debugger symbols (stabs), undefined, absolute and indirect ones are
    /// skipped.
    ///
    /// # Errors
    /// [`ScanError`], offsets counted from the start of the symbol table.
    pub fn for_each_symbol<M: Memory>(
        &self,
        memory: &mut M,
        chunk: &mut [u8; CHUNK],
        limit: u32,
        mut each: impl FnMut(Nlist),
    ) -> Result<(), ScanError> {
        const N_STAB: u8 = 0xe0;
        const N_TYPE: u8 = 0x0e;
        const N_SECT: u8 = 0x0e;
        let limited = u64::from(limit).saturating_mul(NLIST as u64);
        let used = Extent { size: self.symbols.size.min(limited), ..self.symbols };
        let mut window = Window::new(memory, used, chunk);
        let mut offset = 0u64;
        while offset < used.size {
            let (entries, rest) = window.entries(offset)?.as_chunks::<NLIST>();
            for entry in entries {
                // n_strx 0..4, n_type 4, n_sect 5, n_desc 6..8, n_value 8..16
                let (kind, section) = (entry[4], entry[5]);
                let name = u32_at(entry, 0);
                if kind & N_STAB == 0 && kind & N_TYPE == N_SECT && section != 0 && name != 0 {
                    let description = u16::from_le_bytes([entry[6], entry[7]]);
                    each(Nlist { svma: u64_at(entry, 8), name, kind, section, description });
                }
            }
            let read = entries.len().saturating_mul(NLIST).saturating_add(rest.len());
            if read == 0 {
                break;
            }
            offset = offset.saturating_add(read as u64);
        }
        if self.symbols.size > used.size {
            return Err(ScanError { offset: used.size, problem: Problem::Limit });
        }
        Ok(())
    }

    /// The svma of every function, by `LC_FUNCTION_STARTS`: LEB128 distances, the first from `__TEXT`, a zero at the end.
    ///
    /// # Errors
    /// [`ScanError`], offsets counted from the start of the function starts.
    pub fn for_each_function_start<M: Memory>(
        &self,
        memory: &mut M,
        chunk: &mut [u8; CHUNK],
        limit: u32,
        mut each: impl FnMut(u64),
    ) -> Result<(), ScanError> {
        let mut window = Window::new(memory, self.function_starts, chunk);
        let mut offset = 0u64;
        let mut svma = self.text_svma;
        let mut left = limit;
        while offset < window.size() {
            let (distance, behind) = window.uleb128(offset)?;
            if distance == 0 {
                break;
            }
            left = left.checked_sub(1).ok_or(ScanError { offset, problem: Problem::Limit })?;
            svma = svma.wrapping_add(distance);
            each(svma);
            offset = behind;
        }
        Ok(())
    }
}

/// The first 16 bytes, and those behind them.
fn split16(bytes: &[u8]) -> ([u8; 16], &[u8]) {
    bytes.split_first_chunk().map_or(([0; 16], &[]), |(first, rest)| (*first, rest))
}
