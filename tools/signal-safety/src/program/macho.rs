//! Reads Mach-O sections and bindings: which values dyld stores where.
//!
//! Pointers to the program itself are stored in the file (`LC_DYLD_INFO_ONLY` rebases them by the
//! slide): every word of a data section that is an address in the program is taken for a pointer.
//! Imports are named by binding opcodes (<mach-o/loader.h>, `BIND_OPCODE_*`). Files with
//! `LC_DYLD_CHAINED_FIXUPS` are rejected; the linker used here doesn't write them.

use anyhow::{Context, bail, ensure};
use object::{Object as _, ObjectSection as _, SectionKind};

use super::{Machine, Program, Region, Slot};

/// Sections whose slots are independent of each other.
pub(super) const OFFSET_TABLES: [&str; 3] = ["__got", "__la_symbol_ptr", "__nl_symbol_ptr"];

const LC_SEGMENT_64: u32 = 0x19;
const LC_DYLD_INFO: u32 = 0x22;
const LC_DATA_IN_CODE: u32 = 0x29;
const LC_DYLD_INFO_ONLY: u32 = 0x8000_0022;
const LC_DYLD_CHAINED_FIXUPS: u32 = 0x8000_0034;
/// `sizeof(struct mach_header_64)`.
const HEADER: usize = 32;
/// `S_THREAD_LOCAL_REGULAR`, `S_THREAD_LOCAL_ZEROFILL`: the initial values of thread-locals.
///
/// Only their descriptors (`S_THREAD_LOCAL_VARIABLES`) refer to them. A descriptor's first word is
/// `_tlv_bootstrap`, which allocates.
const THREAD_LOCAL_VALUES: [u32; 2] = [0x11, 0x12];

impl Program {
    pub(super) fn read_macho_sections(&mut self, file: &object::File<'_>) {
        for section in file.sections() {
            let object::SectionFlags::MachO { flags, .. } = section.flags() else { continue };
            let flags = flags.0;
            let segment = section.segment_name().ok().flatten().unwrap_or_default();
            if THREAD_LOCAL_VALUES.contains(&(flags & 0xff))
                || section.kind() == SectionKind::Debug
                || segment == "__DWARF"
            {
                continue;
            }
            let name = section.name().unwrap_or_default().to_owned();
            // S_ATTR_PURE_INSTRUCTIONS or S_ATTR_SOME_INSTRUCTIONS.
            let is_code = flags & 0x8000_0400 != 0;
            let bytes = section.data().unwrap_or_default().to_vec();
            self.regions.push(Region { name, start: section.address(), bytes, size: section.size(), is_code });
        }
    }

    pub(super) fn read_macho_slots(&mut self, file: &[u8]) -> anyhow::Result<()> {
        let own: Vec<(u64, u64)> = self
            .regions
            .iter()
            .filter(|region| !region.is_code)
            .flat_map(|region| {
                let first = region.start.next_multiple_of(8) - region.start;
                let words = region.bytes.get(first as usize..).unwrap_or_default().as_chunks::<8>().0.iter();
                let start = region.start + first;
                words.enumerate().map(move |(index, word)| (start + index as u64 * 8, u64::from_le_bytes(*word)))
            })
            .filter(|(_, value)| self.is_code(*value) || self.is_data(*value))
            .collect();
        self.slots.extend(own.into_iter().map(|(at, value)| (at, Slot::Own(value))));

        let mut segments = Vec::new();
        let mut opcodes = Vec::new();
        let mut text = 0;
        let mut at = HEADER;
        for _ in 0..u32_at(file, 16)? {
            let (command, size) = (u32_at(file, at)?, u32_at(file, at + 4)?);
            match command {
                LC_SEGMENT_64 => {
                    let start = u64_at(file, at + 24)?;
                    if file.get(at + 8..).is_some_and(|name| name.starts_with(b"__TEXT\0")) {
                        text = start;
                    }
                    segments.push(start);
                }
                LC_DYLD_INFO | LC_DYLD_INFO_ONLY => {
                    // bind, weak bind, lazy bind: an offset and a size each.
                    for field in [16, 24, 32] {
                        opcodes.push((u32_at(file, at + field)? as usize, u32_at(file, at + field + 4)? as usize));
                    }
                }
                LC_DATA_IN_CODE => {
                    self.blank_data_in_code(file, text, u32_at(file, at + 8)?, u32_at(file, at + 12)?)?;
                }
                LC_DYLD_CHAINED_FIXUPS => bail!("chained fixups are not supported"),
                _ => {}
            }
            ensure!(size >= 8, "a load command of {size} bytes");
            at += size as usize;
        }
        for (start, size) in opcodes {
            let opcodes = file.get(start..start + size).context("binding opcodes beyond the file's end")?;
            self.bind(opcodes, &segments)?;
        }
        Ok(())
    }

    /// Blanks jump tables in code, which are not instructions.
    ///
    /// `LC_DATA_IN_CODE` lists them: offset from the header, length, kind. A jump through such a
    /// table stays in its function.
    fn blank_data_in_code(&mut self, file: &[u8], text: u64, start: u32, size: u32) -> anyhow::Result<()> {
        let (start, size) = (start as usize, size as usize);
        let entries = file.get(start..start + size).context("a list of data in code beyond the file's end")?;
        // An instruction without effect: x86's one-byte nop, or arm64's.
        let nothing: &[u8] = if self.machine == Machine::X86_64 { &[0x90] } else { &[0x1f, 0x20, 0x03, 0xd5] };
        for entry in entries.as_chunks::<8>().0 {
            let address = text + u64::from(u32_at(entry, 0)?);
            let length = usize::from(u16::from_le_bytes([entry[4], entry[5]]));
            let region = self.regions.iter_mut().find(|region| region.is_code && region.contains(address));
            let region = region.with_context(|| format!("data in code at {address:#x}, where no code is"))?;
            let at = (address - region.start) as usize;
            let table = region.bytes.get_mut(at..at + length).context("data in code beyond its section's end")?;
            table.iter_mut().zip(nothing.iter().cycle()).for_each(|(byte, nothing)| *byte = *nothing);
        }
        Ok(())
    }

    /// Runs binding opcodes.
    ///
    /// `BIND_OPCODE_DONE` ends a symbol in lazy ones, and is padding in the others.
    fn bind(&mut self, opcodes: &[u8], segments: &[u64]) -> anyhow::Result<()> {
        let mut rest = opcodes;
        let (mut name, mut address) = (String::new(), 0_u64);
        while let Some((byte, after)) = rest.split_first() {
            rest = after;
            let immediate = u64::from(byte & 0xf);
            match byte & 0xf0 {
                // DONE, SET_DYLIB_ORDINAL_IMM, SET_DYLIB_SPECIAL_IMM, SET_TYPE_IMM
                0x00 | 0x10 | 0x30 | 0x50 => {}
                // SET_DYLIB_ORDINAL_ULEB, SET_ADDEND_SLEB
                0x20 | 0x60 => drop(uleb(&mut rest)?),
                // SET_SYMBOL_TRAILING_FLAGS_IMM
                0x40 => {
                    let end = rest.iter().position(|byte| *byte == 0).context("a name without an end")?;
                    name = String::from_utf8_lossy(&rest[..end]).into_owned();
                    rest = &rest[end + 1..];
                }
                // SET_SEGMENT_AND_OFFSET_ULEB
                0x70 => {
                    let segment = segments.get(immediate as usize).context("missing segment")?;
                    address = segment.wrapping_add(uleb(&mut rest)?);
                }
                // ADD_ADDR_ULEB
                0x80 => address = address.wrapping_add(uleb(&mut rest)?),
                // DO_BIND, DO_BIND_ADD_ADDR_ULEB, DO_BIND_ADD_ADDR_IMM_SCALED
                0x90 => address = self.import(&name, address, 0),
                0xa0 => {
                    let add = uleb(&mut rest)?;
                    address = self.import(&name, address, add);
                }
                0xb0 => address = self.import(&name, address, immediate * 8),
                // DO_BIND_ULEB_TIMES_SKIPPING_ULEB
                0xc0 => {
                    let (count, skip) = (uleb(&mut rest)?, uleb(&mut rest)?);
                    for _ in 0..count {
                        address = self.import(&name, address, skip);
                    }
                }
                other => bail!("binding opcode {other:#x}"),
            }
        }
        Ok(())
    }

    /// Records an import; returns the address after it and `skip`.
    fn import(&mut self, name: &str, address: u64, skip: u64) -> u64 {
        let name = name.strip_prefix('_').unwrap_or(name);
        // A variant of a function ($INODE64, $NOCANCEL) counts as the function.
        let name = name.split('$').next().unwrap_or(name);
        // The binder of lazy pointers. dyld binds all of them when it loads a program (dyld 3 and
        // later, since macOS 11), so the stub helpers that would call it never run.
        if name != "dyld_stub_binder" {
            self.slots.insert(address, Slot::Import(name.to_owned()));
        }
        address.wrapping_add(8).wrapping_add(skip)
    }
}

fn u32_at(file: &[u8], at: usize) -> anyhow::Result<u32> {
    let bytes = file.get(at..at + 4).context("load commands beyond the file's end")?;
    Ok(u32::from_le_bytes(bytes.try_into()?))
}

fn u64_at(file: &[u8], at: usize) -> anyhow::Result<u64> {
    Ok(u64::from(u32_at(file, at)?) | u64::from(u32_at(file, at + 4)?) << 32)
}

/// Reads a ULEB128 number (DWARF 5, section 7.6). Signed numbers are only skipped.
fn uleb(rest: &mut &[u8]) -> anyhow::Result<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first().context("a number beyond the opcodes' end")?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    bail!("a number of more than 64 bits")
}
