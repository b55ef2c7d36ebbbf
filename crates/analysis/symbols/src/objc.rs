//! Method names from Objective-C metadata, which remains in an app after `strip`.
//!
//! Supported: `__objc_classlist` and `__objc_catlist`, classes and their metaclasses, categories,
//! method lists with pointers and with relative offsets. Sources: Apple's objc4
//! `objc-runtime-new.h` (`class_ro_t`, `method_list_t`, `category_t`), and `mach-o/fixup-chains.h`
//! for unresolved pointers in a file.
//!
//! A category on another image's class is named `-[(Category) selector]`: only a binding refers to
//! the class that it extends.

use coroner_process::memory::{Snapshot, SnapshotRange};
use coroner_process::symtab::{MachO, Section};

use crate::{
    error::Malformed,
    mapped_file::Fields,
    symbol_table::{BindingRank, SymbolSource, TableBuilder},
};

/// `RO_META`: set in the flags of a metaclass, whose methods are class methods.
const RO_META: u32 = 1;
/// `method_list_t`: entries are relative offsets.
const SMALL: u32 = 0x8000_0000;
/// `method_list_t`: relative names point to the selector itself, not to a reference to it.
const DIRECT_SELECTORS: u32 = 0x4000_0000;
/// The bits of `entsizeAndFlags` that contain the size.
const ENTRY_SIZE: u32 = 0xfffc;
/// Maximum number of methods in a list, for malformed counts; a class has a few hundred at most.
const MAX_METHODS: u32 = 100_000;
/// Maximum number of all methods together.
const MAX_NAMES: usize = 4_000_000;
/// Maximum length of a class name or selector, in bytes.
const MAX_NAME: usize = 4096;

pub(crate) fn collect(builder: &mut TableBuilder, bytes: &[u8], image: &MachO, problems: &mut Vec<Malformed>) {
    let mut sections: Vec<Section> = Vec::new();
    let ranges = [SnapshotRange { address: 0, bytes }];
    if image.for_each_section(&mut Snapshot { ranges: &ranges }, |section| sections.push(section)).is_err() {
        // Already reported when the sections were read for their bounds.
        return;
    }
    let mut metadata =
        Metadata { file: Fields { bytes, big_endian: false }, image, sections, format: Pointers::Plain, names: 0 };
    metadata.format = metadata.pointer_format();
    for (list, of_category) in
        [(&b"__objc_classlist"[..], false), (b"__objc_nlclslist", false), (b"__objc_catlist", true)]
    {
        for index in 0..metadata.sections.len() {
            let section = metadata.sections[index];
            if section.name.split(|&byte| byte == 0).next() != Some(list) {
                continue;
            }
            for item in 0..section.size / 8 {
                let at = u64::from(section.file_offset).saturating_add(item * 8);
                let Some(()) = metadata.item(builder, at, of_category) else {
                    let name = String::from_utf8_lossy(list).into_owned();
                    problems.push(Malformed::new(at, format!("entry {item} of {name} points outside the file")));
                    // More malformed entries probably follow, and each would add a message.
                    break;
                };
            }
        }
    }
}

/// The format of unresolved pointers in the file, which dyld replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pointers {
    /// Plain addresses (`LC_DYLD_INFO`).
    Plain,
    /// `DYLD_CHAINED_PTR_64`: the low 36 bits are an address.
    Chained64,
    /// `DYLD_CHAINED_PTR_64_OFFSET`: the low 36 bits are an offset from the header.
    Chained64Offset,
    /// `DYLD_CHAINED_PTR_ARM64E`: authenticated pointers have a 32-bit offset, others a 43-bit
    /// address.
    Arm64e,
    /// `DYLD_CHAINED_PTR_ARM64E_USERLAND` and `…_USERLAND24`: both kinds have offsets.
    Arm64eOffset,
}

struct Metadata<'a> {
    file: Fields<'a>,
    image: &'a MachO,
    sections: Vec<Section>,
    format: Pointers,
    names: usize,
}

impl Metadata<'_> {
    /// Returns the pointer format in `LC_DYLD_CHAINED_FIXUPS`, from the first segment that has one.
    /// Formats are never mixed.
    fn pointer_format(&self) -> Pointers {
        self.chained_format().unwrap_or(Pointers::Plain)
    }

    fn chained_format(&self) -> Option<Pointers> {
        let fixups = self.image.chained_fixups;
        if fixups.size == 0 {
            return None;
        }
        // dyld_chained_fixups_header: fixups_version, starts_offset, …
        let starts = fixups.address.checked_add(u64::from(self.file.u32(fixups.address.checked_add(4)?)?))?;
        // dyld_chained_starts_in_image: seg_count, seg_info_offset[seg_count]
        let segments = self.file.u32(starts)?.min(64);
        for index in 0..u64::from(segments) {
            let info = self.file.u32(starts.checked_add(4 + index * 4)?)?;
            if info == 0 {
                continue;
            }
            // dyld_chained_starts_in_segment: size (4), page_size (2), pointer_format (2), …
            return Some(match self.file.u16(starts.checked_add(u64::from(info))?.checked_add(6)?)? {
                1 => Pointers::Arm64e,
                2 => Pointers::Chained64,
                6 => Pointers::Chained64Offset,
                9 | 12 => Pointers::Arm64eOffset,
                _ => return None,
            });
        }
        None
    }

    /// Returns the svma (without the slide) that the pointer at a file offset will have;
    /// `Some(None)` for null and for pointers to other images.
    #[allow(clippy::option_option)] // Outer: beyond the file. Inner: leads nowhere in this image.
    fn pointer(&self, at: u64) -> Option<Option<u64>> {
        let raw = self.file.u64(at)?;
        let from_header = |offset: u64| self.image.text_svma.checked_add(offset);
        let target = match self.format {
            _ if raw == 0 => None,
            Pointers::Plain => Some(raw),
            Pointers::Chained64 | Pointers::Chained64Offset if raw >> 63 == 1 => None,
            Pointers::Chained64 => Some(raw & 0xf_ffff_ffff),
            Pointers::Chained64Offset => from_header(raw & 0xf_ffff_ffff),
            Pointers::Arm64e | Pointers::Arm64eOffset if raw >> 62 & 1 == 1 => None,
            Pointers::Arm64e | Pointers::Arm64eOffset if raw >> 63 == 1 => from_header(raw & 0xffff_ffff),
            Pointers::Arm64e => Some(raw & 0x7ff_ffff_ffff),
            Pointers::Arm64eOffset => from_header(raw & 0x7ff_ffff_ffff),
        };
        Some(target)
    }

    /// Returns the file offset of an address, from the section that contains it.
    fn offset_of(&self, svma: u64) -> Option<u64> {
        let section = self
            .sections
            .iter()
            .find(|section| svma >= section.svma && svma - section.svma < section.size && section.file_offset != 0)?;
        u64::from(section.file_offset).checked_add(svma - section.svma)
    }

    /// Follows the pointer at a file offset; returns the target's file offset.
    fn follow(&self, at: u64) -> Option<u64> {
        self.offset_of(self.pointer(at)??)
    }

    fn string(&self, at: u64) -> Option<&[u8]> {
        let rest = self.file.bytes.get(usize::try_from(at).ok()?..)?;
        let end = rest.iter().take(MAX_NAME).position(|&byte| byte == 0)?;
        Some(&rest[..end])
    }

    /// Adds an entry in a class or category list. `None` if it points outside the file.
    fn item(&mut self, builder: &mut TableBuilder, at: u64, is_category: bool) -> Option<()> {
        let Some(svma) = self.pointer(at)? else { return Some(()) };
        let item = self.offset_of(svma)?;
        if is_category {
            return self.category(builder, item);
        }
        self.class(builder, item)?;
        // The metaclass is the class's `isa`. A root metaclass is its own `isa`, so one step is
        // enough.
        if let Some(metaclass) = self.follow(item) {
            self.class(builder, metaclass)?;
        }
        Some(())
    }

    /// Adds the methods of a `class_t`.
    ///
    /// Its fields are isa, superclass, cache, mask, then `class_ro_t` with flags of the Swift
    /// compiler in its low bits. `class_ro_t`: flags 0, name 24, baseMethods 32.
    fn class(&mut self, builder: &mut TableBuilder, class: u64) -> Option<()> {
        let (flags, name) = self.class_name(class)?;
        let sign = if flags & RO_META != 0 { '+' } else { '-' };
        let read_only = self.read_only(class)?;
        if let Some(methods) = self.follow(read_only.checked_add(32)?) {
            self.methods(builder, methods, sign, &name)?;
        }
        Some(())
    }

    fn read_only(&self, class: u64) -> Option<u64> {
        self.offset_of(self.pointer(class.checked_add(32)?)?? & !7)
    }

    fn class_name(&self, class: u64) -> Option<(u32, Vec<u8>)> {
        let read_only = self.read_only(class)?;
        let name = self.string(self.follow(read_only.checked_add(24)?)?)?;
        Some((self.file.u32(read_only)?, name.to_vec()))
    }

    /// Adds the methods of a `category_t`: name 0, class 8, instance methods 16, class methods 24.
    fn category(&mut self, builder: &mut TableBuilder, category: u64) -> Option<()> {
        let name = self.string(self.follow(category)?)?;
        let mut full =
            self.follow(category.checked_add(8)?).and_then(|class| self.class_name(class)).map_or(vec![], |c| c.1);
        full.push(b'(');
        full.extend_from_slice(name);
        full.push(b')');
        for (field, sign) in [(16, '-'), (24, '+')] {
            if let Some(methods) = self.follow(category.checked_add(field)?) {
                self.methods(builder, methods, sign, &full)?;
            }
        }
        Some(())
    }

    /// Adds the methods in a `method_list_t`.
    ///
    /// Its fields are entsizeAndFlags, count, entries of either three pointers (name, types,
    /// implementation) or three 32-bit offsets, each relative to its own address.
    fn methods(&mut self, builder: &mut TableBuilder, list: u64, sign: char, class: &[u8]) -> Option<()> {
        let (flags, count) = (self.file.u32(list)?, self.file.u32(list.checked_add(4)?)?);
        let small = flags & SMALL != 0;
        let entry_size = u64::from(flags & ENTRY_SIZE);
        if count > MAX_METHODS || entry_size < if small { 12 } else { 24 } {
            return None;
        }
        // The list's address in memory, to which offsets are relative.
        let list_svma = self.svma_of(list)?;
        for index in 0..u64::from(count) {
            let within = 8 + index * entry_size;
            let entry = list.checked_add(within)?;
            let (selector, implementation) = if small {
                let from = list_svma.checked_add(within)?;
                let distance = |field: u64| {
                    let value = self.file.u32(entry.checked_add(field)?)? as i32;
                    from.checked_add(field)?.checked_add_signed(i64::from(value))
                };
                let name = self.offset_of(distance(0)?)?;
                let name = if flags & DIRECT_SELECTORS != 0 { Some(name) } else { self.follow(name) };
                (name, distance(8))
            } else {
                (self.follow(entry), self.pointer(entry.checked_add(16)?)?)
            };
            let (Some(selector), Some(implementation)) = (selector, implementation) else { continue };
            self.names += 1;
            if self.names > MAX_NAMES {
                return None;
            }
            let selector = self.string(selector)?;
            let mut name = format!("{sign}[").into_bytes();
            name.extend_from_slice(class);
            name.push(b' ');
            name.extend_from_slice(selector);
            name.push(b']');
            if let Some(name) = builder.make_name(&name) {
                builder.add(implementation, 0, SymbolSource::ObjcMetadata, BindingRank::Local, name);
            }
        }
        Some(())
    }

    fn svma_of(&self, offset: u64) -> Option<u64> {
        let section = self.sections.iter().find(|section| {
            let start = u64::from(section.file_offset);
            start != 0 && offset >= start && offset - start < section.size
        })?;
        section.svma.checked_add(offset - u64::from(section.file_offset))
    }
}
