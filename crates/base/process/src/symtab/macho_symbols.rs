//! Mach-O symbol tables, in memory or in a file: `nlist` symbols, function starts, sections.
//!
//! [`crate::macho`] reads headers and load commands.
//!
//! Source: Apple's `mach-o/loader.h`, `mach-o/nlist.h`, `mach-o/stab.h`.

use crate::macho::{BadCommand, Command, Header, LC_SEGMENT_64, LC_UUID, MAX_COMMANDS};
use crate::memory::{Memory, u32_at, u64_at};

use super::{CHUNK, Extent, Problem, ScanError, Window};

const LC_SYMTAB: u32 = 0x2;
const LC_DYLD_INFO: u32 = 0x22;
const LC_DYLD_INFO_ONLY: u32 = 0x8000_0022;
const LC_FUNCTION_STARTS: u32 = 0x26;
const LC_DYLD_EXPORTS_TRIE: u32 = 0x8000_0033;
const LC_DYLD_CHAINED_FIXUPS: u32 = 0x8000_0034;
/// Size of an `nlist_64`.
const NLIST: usize = 16;

impl From<BadCommand> for ScanError {
    /// Converts with an offset from the start of the command.
    fn from(error: BadCommand) -> ScanError {
        match error {
            BadCommand::Unreadable => ScanError { offset: 0, problem: Problem::Unreadable },
            BadCommand::BeyondEnd => ScanError { offset: 4, problem: Problem::BeyondEnd },
            BadCommand::TooSmall => ScanError { offset: 4, problem: Problem::BadHeader },
        }
    }
}

/// Layout of an image in the memory that it is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Mapped by dyld: tables are found by the addresses of `__LINKEDIT`.
    Loaded,
    /// A file or a slice of a fat file: tables are found by their offsets.
    File {
        /// Size in bytes.
        size: u64,
    },
}

/// A 64-bit Mach-O image and its tables, in the address space of its [`Memory`].
///
/// Missing tables are empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachO {
    /// The address of the header.
    pub header: u64,
    /// The svma of `__TEXT`: the header's address without a slide.
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
    /// End of the last segment in the file, from the header.
    pub file_end: u64,
    head: Header,
    placement: Placement,
    /// `__LINKEDIT`: address in memory (svma), size there, offset in the file.
    linkedit: (u64, u64, u64),
}

/// A symbol of `LC_SYMTAB` that is defined in a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nlist {
    /// Address of the symbol.
    pub svma: u64,
    /// Offset in the strings. Names begin with an underscore that the source doesn't have.
    pub name: u32,
    /// `n_type`: 1 is the external bit.
    pub kind: u8,
    /// `n_sect`: the ordinal of the symbol's section, from 1.
    pub section: u8,
    /// `n_desc`: 0x80 weak definition, 0x200 alternate entry.
    pub description: u16,
}

impl Nlist {
    /// Returns the preference of the symbol's name among several at one address.
    ///
    /// The exported one is what people know; an alternate entry (`N_ALT_ENTRY`) is a label inside a
    /// function.
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
    /// Address of the section.
    pub svma: u64,
    /// Size in memory, in bytes.
    pub size: u64,
    /// Offset in the file, from the header.
    pub file_offset: u32,
    /// Type and attributes.
    pub flags: u32,
}

impl MachO {
    /// Reads the header and load commands at `header`.
    ///
    /// # Errors
    /// [`ScanError`], with offsets from the header.
    pub fn read<M: Memory>(memory: &mut M, header: u64, placement: Placement) -> Result<Self, ScanError> {
        let size = match placement {
            Placement::File { size } => size,
            // The commands follow the header, and are in `__TEXT`; its size isn't known yet.
            Placement::Loaded => u64::MAX.wrapping_sub(header),
        };
        let whole = Extent { address: header, size };
        let head =
            Header::parse(&whole.array(memory, 0)?).ok_or(ScanError { offset: 0, problem: Problem::NotThisFormat })?;
        // A command has at least 8 bytes.
        if head.command_count > MAX_COMMANDS || head.command_count.saturating_mul(8) > head.commands_size {
            return Err(ScanError { offset: 16, problem: Problem::BadHeader });
        }
        whole
            .part(Header::SIZE as u64, head.commands_size.into())
            .ok_or(ScanError { offset: 20, problem: Problem::BeyondEnd })?;
        let none = Extent { address: 0, size: 0 };
        let mut image = Self {
            header,
            text_svma: 0,
            text_size: 0,
            uuid: None,
            cpu_type: head.cpu_type,
            symbols: none,
            strings: none,
            function_starts: none,
            export_trie: none,
            chained_fixups: none,
            file_end: 0,
            head,
            placement,
            linkedit: (0, 0, 0),
        };
        // Two passes: `LC_SYMTAB` may precede the segment that its offsets are resolved by.
        let (mut text, mut linkedit, mut file_end) = (None, None, 0u64);
        image.for_each_command(memory, |memory, command| {
            if command.kind == LC_SEGMENT_64 {
                let segment = command.segment(memory)?;
                let place = (segment.address, segment.size, segment.file_offset);
                file_end = file_end.max(segment.file_offset.saturating_add(segment.file_size));
                if segment.is_named(b"__TEXT") {
                    text = Some(place);
                } else if segment.is_named(b"__LINKEDIT") {
                    linkedit = Some(place);
                }
            }
            Ok(())
        })?;
        // A dSYM has all segments; only an object file, which is not an image, has no `__TEXT`.
        (image.text_svma, image.text_size, _) = text.ok_or(ScanError { offset: 16, problem: Problem::BadHeader })?;
        image.file_end = file_end;
        image.linkedit = linkedit.unwrap_or((0, 0, 0));
        image.read_tables(memory)?;
        Ok(image)
    }

    fn read_tables<M: Memory>(&mut self, memory: &mut M) -> Result<(), ScanError> {
        let mut found = *self;
        self.for_each_command(memory, |memory, command| {
            // Each of these has its offset and size, or two pairs of them, in the first 48 bytes.
            let whole = Extent { address: command.address, size: command.size.into() };
            let field =
                |memory: &mut M, at: u64| whole.array(memory, at).map(|bytes: [u8; 4]| u32::from_le_bytes(bytes));
            let mut table = |at: u64, each: u64| -> Result<Extent, ScanError> {
                let (offset, count) = (field(memory, at)?, field(memory, at.saturating_add(4))?);
                found
                    .table(u64::from(offset), u64::from(count).saturating_mul(each))
                    // Reported at the command that contains it.
                    .ok_or(ScanError { offset: at, problem: Problem::BeyondEnd })
            };
            match command.kind {
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
                LC_UUID => found.uuid = Some(whole.array(memory, 8)?),
                _ => {}
            }
            Ok(())
        })?;
        *self = found;
        Ok(())
    }

    /// Returns the location of a table that a load command places at a file offset.
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

    /// Returns the difference between addresses in memory and svmas; meaningless for a file.
    pub fn slide(&self) -> u64 {
        self.header.wrapping_sub(self.text_svma)
    }

    /// Calls `each` with every load command.
    ///
    /// Errors of `each` have offsets from the command, returned errors have offsets from the
    /// header.
    fn for_each_command<M: Memory>(
        &self,
        memory: &mut M,
        mut each: impl FnMut(&mut M, &Command) -> Result<(), ScanError>,
    ) -> Result<(), ScanError> {
        let mut commands = self.head.commands(self.header);
        loop {
            let at = commands.address().wrapping_sub(self.header);
            let from_header = |error: ScanError| ScanError { offset: error.offset.saturating_add(at), ..error };
            let command = commands.next(memory).map_err(|error| from_header(error.into()))?;
            let Some(command) = command else { return Ok(()) };
            each(memory, &command).map_err(from_header)?;
        }
    }

    /// Calls `each` with every section of every segment, in the order of their ordinals.
    ///
    /// # Errors
    /// [`ScanError`], with offsets from the header.
    pub fn for_each_section<M: Memory>(&self, memory: &mut M, mut each: impl FnMut(Section)) -> Result<(), ScanError> {
        self.for_each_command(memory, |memory, command| {
            if command.kind == LC_SEGMENT_64 {
                let count = command.segment(memory)?.section_count;
                command.each_section(memory, count, |section| {
                    each(Section {
                        segment: section.segment,
                        name: section.name,
                        svma: section.address,
                        size: section.size,
                        file_offset: section.file_offset,
                        flags: section.flags,
                    });
                })?;
            }
            Ok(())
        })
    }

    /// Calls `each` with every symbol that is defined in a section.
    ///
    /// Debugger symbols (stabs), undefined, absolute and indirect symbols are skipped.
    ///
    /// # Errors
    /// [`ScanError`], with offsets from the start of the symbol table.
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

    /// Calls `each` with the svma of every function, from `LC_FUNCTION_STARTS`.
    ///
    /// The table contains LEB128 distances, the first from `__TEXT`, and ends with a zero.
    ///
    /// # Errors
    /// [`ScanError`], with offsets from the start of the function starts.
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
