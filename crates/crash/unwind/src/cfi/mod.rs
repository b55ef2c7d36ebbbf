//! Call frame information (CFI): the CIEs and FDEs of `.eh_frame`, Mach-O `__eh_frame` and
//! `.debug_frame`.
//!
//! Format: DWARF 5, section 6.4.1; for the differences of `.eh_frame`, see the Linux Standard Base
//! ("Exception Frames"). The whole format is parsed, except for personality routines and
//! language-specific data, which are skipped. [`eh_frame_hdr`] finds the FDE of an address, `row`
//! runs its instructions, `expression` evaluates its expressions, and `fast_path` does all of it
//! for the FDEs that compilers write.
//!
//! Guarantees: nothing outside a section is read; malformed data result in a [`Problem`] with an
//! address, never a panic or an endless loop.

pub(crate) mod eh_frame_hdr;
pub(crate) mod expression;
pub(crate) mod fast_path;
pub(crate) mod row;

use crate::arch::{Aarch64, Architecture, X86_64};
use crate::cfi::fast_path::{CachedCie, FastCie};
use crate::cfi::row::RowState;
use crate::cursor::{Bases, Cursor, DW_EH_PE_OMIT};
use crate::frame::{Malformed, Problem};
use crate::image::{AddressRange, Image};
use coroner_process::memory::Memory;

/// Dialect of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// `.eh_frame` and `__eh_frame`.
    EhFrame,
    /// `.debug_frame`.
    DebugFrame,
}

/// A section of call frame information, in memory: the input of
/// [`build_search_table`](crate::build_search_table).
#[derive(Clone, Copy, Debug)]
pub struct FrameSection {
    /// Address range of the section.
    pub(crate) range: AddressRange,
    /// Dialect of the section.
    pub(crate) dialect: Dialect,
    /// Bases of the section's relative pointers.
    bases: Bases,
    /// Value to add to the addresses of `.debug_frame`.
    bias: u64,
}

impl FrameSection {
    /// Returns the `.eh_frame` or `__eh_frame` of an image. If only the search table's place is
    /// known, the section is assumed to extend as far as memory and its entries do.
    pub fn eh_frame(image: &Image) -> FrameSection {
        let range = if image.eh_frame.is_empty() && !image.eh_frame_hdr.is_empty() {
            AddressRange { start: 0, end: u64::MAX }
        } else {
            image.eh_frame
        };
        FrameSection { range, dialect: Dialect::EhFrame, bases: bases(image), bias: 0 }
    }

    /// Returns the `.debug_frame` of an image.
    pub fn debug_frame(image: &Image) -> FrameSection {
        FrameSection {
            range: image.debug_frame,
            dialect: Dialect::DebugFrame,
            bases: Bases::default(),
            bias: image.bias,
        }
    }
}

fn bases(image: &Image) -> Bases {
    let given = |address| if address == 0 { None } else { Some(address) };
    Bases { text: given(image.text_section), data: given(image.data), function: None }
}

/// A CIE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cie {
    /// Address of the CIE.
    pub address: u64,
    /// Unit of `DW_CFA_advance_loc`.
    pub code_alignment: u64,
    /// Unit of offsets.
    pub data_alignment: i64,
    /// Column of the return address.
    pub return_register: u8,
    /// Encoding of code addresses in the CIE's entries.
    pub pointer_encoding: u8,
    /// Whether the CIE's entries have augmentation data (`z`).
    pub has_augmentation: bool,
    /// Whether the CIE's entries describe signal trampolines (`S`): the frame above was
    /// interrupted.
    pub signal_trampoline: bool,
    /// [`FrameSection::bias`].
    pub(crate) bias: u64,
    /// The row after the initial instructions.
    pub initial: RowState,
    /// The part that the fast path needs, if the entry is plain.
    pub(crate) plain: Option<FastCie>,
}

/// An FDE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fde {
    /// Address of the FDE.
    pub address: u64,
    /// Address of the FDE's CIE.
    pub cie: u64,
    /// The code that the FDE describes.
    pub range: AddressRange,
    /// Range of the FDE's instructions.
    pub instructions: AddressRange,
}

/// Cache of the last CIEs: nearly all functions of an image share one, and parsing it would cost as
/// much as parsing the entry.
#[derive(Debug)]
pub(crate) struct CieCache {
    entries: [Cie; 8],
    /// The same for plain CIEs, which need no more.
    pub(crate) plain: [CachedCie; 8],
}

impl Default for CieCache {
    fn default() -> Self {
        CieCache::new()
    }
}

impl CieCache {
    /// Creates an empty cache.
    pub(crate) const fn new() -> CieCache {
        const NONE: Cie = Cie {
            address: 0,
            code_alignment: 0,
            data_alignment: 0,
            return_register: 0,
            pointer_encoding: 0,
            has_augmentation: false,
            signal_trampoline: false,
            bias: 0,
            initial: RowState::new(0),
            plain: None,
        };
        CieCache { entries: [NONE; 8], plain: [CachedCie::NONE; 8] }
    }

    pub(crate) fn clear(&mut self) {
        for known in &mut self.entries {
            known.address = 0;
        }
        self.plain = [CachedCie::NONE; 8];
    }

    /// Returns the place of the entry at `address`. Entries are aligned to 4 or 8 and images to
    /// pages, so the address is hashed.
    #[inline]
    pub(crate) const fn index(address: u64) -> usize {
        (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61) as usize & 7
    }

    /// Returns the CIE at `address` in `section`.
    ///
    /// # Errors
    /// A [`Problem`] if the data are malformed or unreadable.
    #[inline]
    pub(crate) fn get<M: Memory>(
        &mut self,
        memory: &mut M,
        section: &FrameSection,
        address: u64,
    ) -> Result<&Cie, Problem> {
        let known = &mut self.entries[CieCache::index(address)];
        if known.address != address || known.bias != section.bias || address == 0 {
            *known = Cie::parse(memory, section, address)?;
        }
        Ok(known)
    }
}

/// Kind of an entry.
enum Kind {
    Terminator,
    Cie,
    Fde { cie: u64 },
}

/// Reads the head that both kinds of entry share. The cursor is then after the head, and its end is
/// the entry's.
fn kind<M: Memory>(cursor: &mut Cursor<'_, M>, section: &FrameSection) -> Result<Kind, Problem> {
    let (length, wide) = match cursor.u32()? {
        0 => return Ok(Kind::Terminator),
        0xffff_ffff => (cursor.u64()?, true),
        0xffff_fff0..=0xffff_fffe => return Err(cursor.malformed(Malformed::OutOfRange)),
        length => (length.into(), false),
    };
    let id_address = cursor.address();
    let end = id_address.checked_add(length).ok_or(cursor.malformed(Malformed::Truncated))?;
    cursor.narrow(end)?;
    // In the 64-bit format, the ID has four bytes in `.eh_frame` according to the LSB; gimli and
    // binutils read eight.
    let id = if wide { cursor.u64()? } else { cursor.u32()?.into() };
    let cie = match section.dialect {
        Dialect::EhFrame if id == 0 => return Ok(Kind::Cie),
        Dialect::EhFrame => id_address.checked_sub(id),
        Dialect::DebugFrame if id == if wide { u64::MAX } else { 0xffff_ffff } => return Ok(Kind::Cie),
        Dialect::DebugFrame => section.range.start.checked_add(id),
    };
    let out_of_range = Problem::Malformed { what: Malformed::OutOfRange, address: id_address };
    Ok(Kind::Fde { cie: cie.ok_or(out_of_range)? })
}

impl Cie {
    /// Parses the CIE at `address`.
    ///
    /// # Errors
    /// A [`Problem`] if the data are malformed or unreadable; [`Malformed::Reference`] if there is
    /// another kind of entry.
    pub(crate) fn parse<M: Memory>(memory: &mut M, section: &FrameSection, address: u64) -> Result<Cie, Problem> {
        let mut cursor = Cursor::new(memory, section.range, address)?;
        if !matches!(kind(&mut cursor, section)?, Kind::Cie) {
            return Err(Problem::Malformed { what: Malformed::Reference, address });
        }
        let version_address = cursor.address();
        let version = cursor.u8()?;
        let known = match section.dialect {
            Dialect::EhFrame => matches!(version, 1 | 3),
            Dialect::DebugFrame => matches!(version, 1 | 3 | 4),
        };
        if !known {
            return Err(Problem::Malformed { what: Malformed::Version, address: version_address });
        }
        let augmentation_address = cursor.address();
        let mut augmentation = [0u8; 8];
        let mut length = 0usize;
        loop {
            let byte = cursor.u8()?;
            if byte == 0 {
                break;
            }
            let bad = Problem::Malformed { what: Malformed::Augmentation, address: augmentation_address };
            *augmentation.get_mut(length).ok_or(bad)? = byte;
            length = length.wrapping_add(1);
        }
        if version == 4 && cursor.u16()? != 8 {
            // address size 8, segment selector size 0
            return Err(cursor.malformed(Malformed::Version));
        }
        let code_alignment = cursor.uleb()?;
        let data_alignment = cursor.sleb()?;
        let return_register = if version == 1 { cursor.u8()?.into() } else { cursor.uleb()? };
        let mut cie = Cie {
            address,
            code_alignment,
            data_alignment,
            return_register: u8::try_from(return_register).map_err(|_| cursor.malformed(Malformed::OutOfRange))?,
            pointer_encoding: 0,
            has_augmentation: false,
            signal_trampoline: false,
            bias: section.bias,
            initial: RowState::new(address),
            plain: None,
        };
        let entry_end = cursor.end();
        let mut data_end = None;
        for (index, letter) in augmentation.iter().take(length).enumerate() {
            match letter {
                b'z' if index == 0 => {
                    let length = cursor.uleb()?;
                    let end = cursor.address().checked_add(length).filter(|end| *end <= entry_end);
                    data_end = Some(end.ok_or(cursor.malformed(Malformed::Truncated))?);
                    cie.has_augmentation = true;
                }
                b'R' => cie.pointer_encoding = cursor.u8()?,
                b'S' => cie.signal_trampoline = true,
                // The encoding of the language-specific data: the entries' data are skipped as a
                // whole.
                b'L' => {
                    cursor.u8()?;
                }
                b'P' => {
                    let encoding = cursor.u8()?;
                    // Skipped without following an indirection.
                    cursor.pointer(encoding & !0x80, &Bases { text: Some(0), data: Some(0), function: Some(0) })?;
                }
                // arm64: return addresses signed with the B key; tagged stack frames
                b'B' | b'G' => {}
                // The rest is unknown, but with `z` its length is known.
                _ if data_end.is_some() => break,
                // GCC 2's "eh": a pointer follows
                b'e' if augmentation.starts_with(b"eh\0") => {
                    cursor.skip(8)?;
                    break;
                }
                _ => {
                    return Err(Problem::Malformed { what: Malformed::Augmentation, address: augmentation_address });
                }
            }
        }
        if let Some(end) = data_end {
            cursor.seek(end, entry_end)?;
        }
        cie.initial = RowState::initial(&mut cursor, &cie)?;
        // The column of the return address identifies the architecture.
        let row = match cie.return_register {
            X86_64::RA => cie.initial.simple::<X86_64>(&cie),
            Aarch64::RA => cie.initial.simple::<Aarch64>(&cie),
            _ => None,
        };
        cie.plain = row.and_then(|row| FastCie::from_cie(&cie, row));
        Ok(cie)
    }
}

impl Fde {
    /// Parses the FDE at the cursor, which is then at the FDE's instructions.
    ///
    /// # Errors
    /// A [`Problem`] if the data are malformed or unreadable; [`Malformed::Reference`] if there is
    /// another kind of entry.
    #[inline]
    pub(crate) fn parse<M: Memory>(
        cursor: &mut Cursor<'_, M>,
        section: &FrameSection,
        cache: &mut CieCache,
    ) -> Result<Fde, Problem> {
        let address = cursor.address();
        let Kind::Fde { cie } = kind(cursor, section)? else {
            return Err(Problem::Malformed { what: Malformed::Reference, address });
        };
        Fde::rest(cursor, section, cache, address, cie)
    }

    /// Parses the part after the head.
    #[inline]
    fn rest<M: Memory>(
        cursor: &mut Cursor<'_, M>,
        section: &FrameSection,
        cache: &mut CieCache,
        address: u64,
        cie_address: u64,
    ) -> Result<Fde, Problem> {
        let cie = cache.get(cursor.memory, section, cie_address)?;
        let bad = cursor.malformed(Malformed::PointerEncoding);
        let start = cursor.pointer(cie.pointer_encoding, &section.bases)?.ok_or(bad)?.wrapping_add(cie.bias);
        // A length has the pointer's format, and is not relative.
        let length = cursor.pointer(cie.pointer_encoding & 0x0f, &section.bases)?.ok_or(bad)?;
        if cie.pointer_encoding == DW_EH_PE_OMIT {
            return Err(bad);
        }
        let end = start.checked_add(length).ok_or(cursor.malformed(Malformed::OutOfRange))?;
        if cie.has_augmentation {
            let length = cursor.uleb()?;
            cursor.skip(length)?;
        }
        let instructions = AddressRange { start: cursor.address(), end: cursor.end() };
        Ok(Fde { address, cie: cie_address, range: AddressRange { start, end }, instructions })
    }
}

/// Calls `found` for each FDE of a section in order, until it returns `true`.
///
/// This reads the whole section: if a section has a search table, use that instead.
///
/// # Errors
/// A [`Problem`] if the data are malformed or unreadable: entries after that can't be found.
pub(crate) fn for_each_fde<M: Memory>(
    memory: &mut M,
    section: &FrameSection,
    cache: &mut CieCache,
    mut found: impl FnMut(&Fde) -> bool,
) -> Result<(), Problem> {
    let mut at = section.range.start;
    while at < section.range.end {
        let mut cursor = Cursor::new(&mut *memory, section.range, at)?;
        match kind(&mut cursor, section)? {
            // Linkers put one at the end; with several inputs, some may be in the middle.
            Kind::Terminator => at = cursor.address(),
            Kind::Cie => at = cursor.end(),
            Kind::Fde { cie } => {
                let end = cursor.end();
                if found(&Fde::rest(&mut cursor, section, cache, at, cie)?) {
                    return Ok(());
                }
                at = end;
            }
        }
    }
    Ok(())
}
