//! Fixups: rebases and binds, in the two encodings that linkers write.
//!
//! * dyld-info opcodes (<mach-o/loader.h>, REBASE_OPCODE_* and BIND_OPCODE_*). All binds, including
//!   lazy ones, are made at load, by the loader's resolver.
//! * chained fixups (<mach-o/fixup-chains.h>), pointer formats 2 (DYLD_CHAINED_PTR_64) and 6
//!   (…_64_OFFSET), imports formats 1–3.

use super::{
    image::Mapped,
    macho::{File, text_at, u32_at, u64_at},
};
use crate::host::kernel::ending::refuse;

/// Resolves a symbol by name; if the flag is set, it may be missing (then the address is 0).
pub(super) type Resolver<'a> = &'a mut dyn FnMut(&str, bool) -> usize;

/// Applies every fixup of the file to its mapped image.
pub(super) fn apply(file: &File, image: &Mapped, resolve: Resolver) {
    if let Some((offset, size)) = file.chained {
        let bytes = file.bytes.get(offset..offset + size).unwrap_or_default();
        if chained(bytes, image, resolve).is_none() {
            refuse!("{}: its chained fixups are malformed", image.name);
        }
        return;
    }
    let part = |(offset, size): (usize, usize)| file.bytes.get(offset..offset + size).unwrap_or_default();
    if rebase(part(file.rebase), file, image).is_none() {
        refuse!("{}: its rebase opcodes are malformed", image.name);
    }
    for (index, range) in file.binds.into_iter().enumerate() {
        if bind(part(range), file, image, index == 2, resolve).is_none() {
            refuse!("{}: its bind opcodes are malformed", image.name);
        }
    }
}

/// Reads opcodes and their LEB128 operands.
struct Opcodes<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Opcodes<'a> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }
    fn uleb(&mut self) -> Option<u64> {
        let (mut value, mut shift) = (0u64, 0);
        loop {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift)?;
            shift += 7;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
    }
    fn sleb(&mut self) -> Option<i64> {
        let (mut value, mut shift) = (0i64, 0);
        loop {
            let byte = self.byte()?;
            value |= i64::from(byte & 0x7f).checked_shl(shift)?;
            shift += 7;
            if byte & 0x80 == 0 {
                return Some(if byte & 0x40 != 0 && shift < 64 { value | (-1i64 << shift) } else { value });
            }
        }
    }
    fn text(&mut self) -> Option<&'a str> {
        let text = text_at(self.bytes, self.at)?;
        self.at += text.len() + 1;
        Some(text)
    }
}

fn rebase(bytes: &[u8], file: &File, image: &Mapped) -> Option<()> {
    let mut ops = Opcodes { bytes, at: 0 };
    let mut address = 0u64;
    let fix = |address: u64| image.write(address, image.read(address).wrapping_add(image.slide as u64));
    while ops.at < bytes.len() {
        let byte = ops.byte()?;
        let immediate = u64::from(byte & 0xf);
        match byte & 0xf0 {
            0x00 => break, // DONE
            0x10 => {}     // SET_TYPE_IMM: always a pointer on 64-bit
            0x20 => address = file.segments.get(immediate as usize)?.address.wrapping_add(ops.uleb()?),
            0x30 => address = address.wrapping_add(ops.uleb()?),
            0x40 => address = address.wrapping_add(immediate * 8),
            kind @ (0x50 | 0x60 | 0x70 | 0x80) => {
                let (count, skip) = match kind {
                    0x50 => (immediate, 0),
                    0x60 => (ops.uleb()?, 0),
                    0x70 => (1, ops.uleb()?),
                    _ => (ops.uleb()?, ops.uleb()?),
                };
                for _ in 0..count {
                    fix(address);
                    address = address.wrapping_add(8).wrapping_add(skip);
                }
            }
            _ => return None,
        }
    }
    Some(())
}

fn bind(bytes: &[u8], file: &File, image: &Mapped, lazy: bool, resolve: Resolver) -> Option<()> {
    let mut ops = Opcodes { bytes, at: 0 };
    let (mut address, mut addend, mut name, mut weak) = (0u64, 0i64, "", false);
    while ops.at < bytes.len() {
        let byte = ops.byte()?;
        let immediate = u64::from(byte & 0xf);
        let mut bind = |address: u64, addend: i64| {
            let target = resolve(name, weak);
            image.write(address, if target == 0 { 0 } else { (target as u64).wrapping_add_signed(addend) });
        };
        match byte & 0xf0 {
            // DONE ends the program, except in lazy binds where it ends one symbol.
            0x00 if lazy => {}
            0x00 => break,
            0x10 | 0x30 | 0x50 => {} // ordinals and the type
            0x20 => {
                ops.uleb()?;
            }
            0x40 => {
                name = ops.text()?;
                weak = immediate & 1 != 0; // BIND_SYMBOL_FLAGS_WEAK_IMPORT
            }
            0x60 => addend = ops.sleb()?,
            0x70 => address = file.segments.get(immediate as usize)?.address.wrapping_add(ops.uleb()?),
            0x80 => address = address.wrapping_add(ops.uleb()?),
            0x90 => {
                bind(address, addend);
                address = address.wrapping_add(8);
            }
            0xa0 => {
                bind(address, addend);
                address = address.wrapping_add(8).wrapping_add(ops.uleb()?);
            }
            0xb0 => {
                bind(address, addend);
                address = address.wrapping_add(8 + immediate * 8);
            }
            0xc0 => {
                let (count, skip) = (ops.uleb()?, ops.uleb()?);
                for _ in 0..count {
                    bind(address, addend);
                    address = address.wrapping_add(8).wrapping_add(skip);
                }
            }
            _ => return None,
        }
    }
    Some(())
}

fn chained(bytes: &[u8], image: &Mapped, resolve: Resolver) -> Option<()> {
    let header = |index: usize| u32_at(bytes, index * 4).map(|v| v as usize);
    let (starts, imports, symbols) = (header(1)?, header(2)?, header(3)?);
    let (count, format) = (header(4)?, header(5)?);
    let mut targets = Vec::new();
    for index in 0..count {
        // lib_ordinal, weak_import, name_offset in 8+1+23 bits, or 16+1+15+32 bits in format 3;
        // then the addend.
        let (weak, name, addend) = match format {
            1 => {
                let word = u32_at(bytes, imports + index * 4)?;
                (word & 0x100 != 0, word >> 9, 0)
            }
            2 => {
                let word = u32_at(bytes, imports + index * 8)?;
                (word & 0x100 != 0, word >> 9, i64::from(u32_at(bytes, imports + index * 8 + 4)? as i32))
            }
            3 => {
                let word = u64_at(bytes, imports + index * 16)?;
                (word & 0x1_0000 != 0, (word >> 32) as u32, u64_at(bytes, imports + index * 16 + 8)? as i64)
            }
            _ => refuse!("{}: chained imports of format {format}", image.name),
        };
        let target = resolve(text_at(bytes, symbols + name as usize)?, weak);
        targets.push(if target == 0 { 0 } else { (target as u64).wrapping_add_signed(addend) });
    }
    for segment in 0..u32_at(bytes, starts)? as usize {
        let offset = u32_at(bytes, starts + 4 + segment * 4)? as usize;
        if offset == 0 {
            continue;
        }
        let at = starts + offset;
        let half = |at: usize| u32_at(bytes, at & !3).map(|w| if at & 2 == 0 { w & 0xffff } else { w >> 16 });
        let (page_size, pointer_format) = (u64::from(half(at + 4)?), half(at + 6)?);
        let (segment_offset, pages) = (u64_at(bytes, at + 8)?, half(at + 20)?);
        if !matches!(pointer_format, 2 | 6) {
            refuse!("{}: chained pointers of format {pointer_format}", image.name);
        }
        for page in 0..u64::from(pages) {
            let start = half(at + 22 + page as usize * 2)?;
            if start == 0xffff {
                continue; // DYLD_CHAINED_PTR_START_NONE
            }
            let mut address = image.preferred + segment_offset + page * page_size + u64::from(start);
            loop {
                let word = image.read(address);
                let next = (word >> 51) & 0xfff;
                let value = if word >> 63 == 1 {
                    targets.get((word & 0x00ff_ffff) as usize)?.wrapping_add((word >> 24) & 0xff)
                } else {
                    let (target, high) = (word & 0xf_ffff_ffff, ((word >> 36) & 0xff) << 56);
                    let base = if pointer_format == 6 { image.preferred } else { 0 };
                    (target + base).wrapping_add(image.slide as u64) | high
                };
                image.write(address, value);
                if next == 0 {
                    break;
                }
                address += next * 4;
            }
        }
    }
    Some(())
}
