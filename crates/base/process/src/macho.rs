//! 64-bit Mach-O, read through [`Memory`]: the header and its load commands.
//!
//! For loaded images (the image list, live backtraces) and for files that are mapped or in a buffer
//! (symbol tables).
//!
//! The caller has no duties; everything read may be corrupt, or disappear while it is read.
//! Guarantees: no allocation, no panic, and every count is bounded. Limits: little-endian images
//! only, and no fat files: the caller finds the slice.
//!
//! Format: <mach-o/loader.h>.

use crate::memory::{Memory, read_out_of_line, u32_at, u64_at};

/// `MH_MAGIC_64`.
const MAGIC: u32 = 0xfeed_facf;

/// `LC_SEGMENT_64`.
pub const LC_SEGMENT_64: u32 = 0x19;
/// `LC_UUID`.
pub const LC_UUID: u32 = 0x1b;

/// Maximum number of load commands read; the largest programs have some hundreds.
pub const MAX_COMMANDS: u32 = 4096;

/// Maximum number of sections read per segment: more than there are ordinals.
const MAX_SECTIONS: u32 = 256;

/// `struct mach_header_64`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// `cputype`.
    pub cpu_type: u32,
    /// `cpusubtype`.
    pub cpu_subtype: u32,
    /// `filetype`.
    pub file_type: u32,
    /// `ncmds`.
    pub command_count: u32,
    /// `sizeofcmds`, in bytes.
    pub commands_size: u32,
    /// `flags`.
    pub flags: u32,
}

impl Header {
    /// `sizeof(struct mach_header_64)`.
    pub const SIZE: usize = 32;

    /// Parses a header; `None` if it is not that of a 64-bit little-endian image.
    pub fn parse(bytes: &[u8; Header::SIZE]) -> Option<Header> {
        (u32_at(bytes, 0) == MAGIC).then(|| Header {
            cpu_type: u32_at(bytes, 4),
            cpu_subtype: u32_at(bytes, 8),
            file_type: u32_at(bytes, 12),
            command_count: u32_at(bytes, 16),
            commands_size: u32_at(bytes, 20),
            flags: u32_at(bytes, 24),
        })
    }

    /// Returns the load commands of the image whose header is at `address`.
    pub fn commands(&self, address: u64) -> LoadCommands {
        let at = address.saturating_add(Header::SIZE as u64);
        LoadCommands {
            at,
            end: at.saturating_add(self.commands_size.into()),
            left: self.command_count.min(MAX_COMMANDS),
        }
    }
}

/// A load command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// `cmd`.
    pub kind: u32,
    /// Address in the address space that the command is read from.
    pub address: u64,
    /// `cmdsize`: the command's size, at least 8 bytes, all of them within the load commands.
    pub size: u32,
}

/// Why the next load command is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadCommand {
    /// The command can't be read.
    Unreadable,
    /// The command begins or ends after the end of the load commands.
    BeyondEnd,
    /// The command's size is less than that of a load command header.
    TooSmall,
}

impl core::fmt::Display for BadCommand {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            BadCommand::Unreadable => "a load command can't be read",
            BadCommand::BeyondEnd => "a load command reaches beyond the end of the load commands",
            BadCommand::TooSmall => "a load command is smaller than its header",
        })
    }
}

impl core::error::Error for BadCommand {}

/// Iterates over the load commands of an image.
#[derive(Clone, Copy, Debug)]
pub struct LoadCommands {
    at: u64,
    end: u64,
    left: u32,
}

impl LoadCommands {
    /// Returns the address of the next command.
    pub fn address(&self) -> u64 {
        self.at
    }

    /// Returns the next command; `None` after the last.
    ///
    /// # Errors
    /// [`BadCommand`]; the commands after it can't be found.
    pub fn next<M: Memory>(&mut self, memory: &mut M) -> Result<Option<Command>, BadCommand> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        let room = self.end.saturating_sub(self.at);
        let mut bytes = [0; 8];
        if room < bytes.len() as u64 {
            return Err(BadCommand::BeyondEnd);
        }
        read_out_of_line(memory, self.at, &mut bytes).map_err(|_| BadCommand::Unreadable)?;
        let command = Command { kind: u32_at(&bytes, 0), address: self.at, size: u32_at(&bytes, 4) };
        if (command.size as usize) < bytes.len() {
            return Err(BadCommand::TooSmall);
        }
        if u64::from(command.size) > room {
            return Err(BadCommand::BeyondEnd);
        }
        (self.at, self.left) = (self.at.saturating_add(command.size.into()), left);
        Ok(Some(command))
    }
}

impl Command {
    /// Returns the first `N` bytes of the command.
    ///
    /// # Errors
    /// [`BadCommand`] if the command is shorter, or can't be read.
    pub fn bytes<const N: usize, M: Memory>(&self, memory: &mut M) -> Result<[u8; N], BadCommand> {
        self.bytes_at(memory, 0)
    }

    fn bytes_at<const N: usize, M: Memory>(&self, memory: &mut M, at: u64) -> Result<[u8; N], BadCommand> {
        if at.saturating_add(N as u64) > u64::from(self.size) {
            return Err(BadCommand::BeyondEnd);
        }
        let mut bytes = [0; N];
        read_out_of_line(memory, self.address.saturating_add(at), &mut bytes).map_err(|_| BadCommand::Unreadable)?;
        Ok(bytes)
    }

    /// Returns the segment of an `LC_SEGMENT_64`.
    ///
    /// # Errors
    /// [`BadCommand`] if the command is too short, or can't be read.
    pub fn segment<M: Memory>(&self, memory: &mut M) -> Result<SegmentCommand, BadCommand> {
        self.bytes(memory).map(|bytes| SegmentCommand::parse(&bytes))
    }

    /// Calls `each` with the sections of an `LC_SEGMENT_64` that has `count` of them.
    ///
    /// # Errors
    /// [`BadCommand`] if the command is too short for them, or can't be read.
    pub fn each_section<M: Memory>(
        &self,
        memory: &mut M,
        count: u32,
        mut each: impl FnMut(SectionHeader),
    ) -> Result<(), BadCommand> {
        let mut at = SegmentCommand::SIZE as u64;
        for _ in 0..count.min(MAX_SECTIONS) {
            each(SectionHeader::parse(&self.bytes_at(memory, at)?));
            at = at.saturating_add(SectionHeader::SIZE as u64);
        }
        Ok(())
    }
}

/// `struct segment_command_64`. Addresses are as linked, sizes and offsets in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentCommand {
    /// `segname`, NUL-padded.
    pub name: [u8; 16],
    /// `vmaddr`.
    pub address: u64,
    /// `vmsize`.
    pub size: u64,
    /// `fileoff`.
    pub file_offset: u64,
    /// `filesize`.
    pub file_size: u64,
    /// `initprot`: 1 read, 2 write, 4 execute.
    pub protection: u32,
    /// `nsects`.
    pub section_count: u32,
}

impl SegmentCommand {
    /// `sizeof(struct segment_command_64)`.
    pub const SIZE: usize = 72;

    fn parse(bytes: &[u8; SegmentCommand::SIZE]) -> SegmentCommand {
        SegmentCommand {
            name: name_at(bytes, 8),
            address: u64_at(bytes, 24),
            size: u64_at(bytes, 32),
            file_offset: u64_at(bytes, 40),
            file_size: u64_at(bytes, 48),
            protection: u32_at(bytes, 60),
            section_count: u32_at(bytes, 64),
        }
    }

    /// Whether the segment has this name.
    pub fn is_named(&self, name: &[u8]) -> bool {
        trimmed(&self.name) == name
    }
}

/// `struct section_64`. Addresses are as linked, sizes and offsets in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SectionHeader {
    /// `sectname`, NUL-padded.
    pub name: [u8; 16],
    /// `segname`, NUL-padded.
    pub segment: [u8; 16],
    /// `addr`.
    pub address: u64,
    /// `size`.
    pub size: u64,
    /// `offset`.
    pub file_offset: u32,
    /// `flags`: type and attributes.
    pub flags: u32,
}

impl SectionHeader {
    /// `sizeof(struct section_64)`.
    pub const SIZE: usize = 80;

    fn parse(bytes: &[u8; SectionHeader::SIZE]) -> SectionHeader {
        SectionHeader {
            name: name_at(bytes, 0),
            segment: name_at(bytes, 16),
            address: u64_at(bytes, 32),
            size: u64_at(bytes, 40),
            file_offset: u32_at(bytes, 48),
            flags: u32_at(bytes, 64),
        }
    }

    /// Whether the section has this name.
    pub fn is_named(&self, name: &[u8]) -> bool {
        trimmed(&self.name) == name
    }

    /// Whether the section is in the segment with this name.
    pub fn is_in(&self, segment: &[u8]) -> bool {
        trimmed(&self.segment) == segment
    }
}

/// Returns a 16-byte name of a segment or section.
fn name_at(bytes: &[u8], at: usize) -> [u8; 16] {
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or_default()
}

fn trimmed(name: &[u8; 16]) -> &[u8] {
    name.split(|byte| *byte == 0).next().unwrap_or_default()
}
