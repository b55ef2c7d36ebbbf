//! Call frame information: the entries of `.eh_frame`, Mach-O `__eh_frame` and `.debug_frame`.
//!
//! Format: DWARF 5, section 6.4.1; the differences of `.eh_frame` are those of the Linux Standard Base, "Exception
//! Frames". Personality routines and language-specific data are passed over.

use crate::arch::{Aarch64, Architecture, X86_64};
use crate::frame::{Malformed, Problem};
use crate::image::{AddressRange, Image};
use crate::plain::{KnownCommon, PlainCommon};
use crate::row::RowState;
use crate::section::{Bases, Cursor, DW_EH_PE_OMIT};
use coroner_machine::memory::Memory;

/// Which dialect a section is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `.eh_frame` and `__eh_frame`.
    EhFrame,
    /// `.debug_frame`.
    DebugFrame,
}

/// A section of call frame information, in memory.
#[derive(Clone, Copy, Debug)]
pub struct FrameSection {
    /// Where it is.
    pub range: AddressRange,
    /// How it is written.
    pub dialect: Dialect,
    /// What its pointers may be relative to.
    pub bases: Bases,
    /// What is added to the addresses of `.debug_frame`.
    pub bias: u64,
}

impl FrameSection {
    /// The `.eh_frame` or `__eh_frame` of an image. Where only the search table's place is known the section is taken to
    /// go on as far as memory and its entries do.
    pub fn eh_frame(image: &Image) -> FrameSection {
        let range = if image.eh_frame.is_empty() && !image.eh_frame_hdr.is_empty() {
            AddressRange { start: 0, end: u64::MAX }
        } else {
            image.eh_frame
        };
        FrameSection { range, dialect: Dialect::EhFrame, bases: bases(image), bias: 0 }
    }

    /// The `.debug_frame` of an image.
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

/// A common information entry.
#[derive(Clone, Copy, Debug)]
pub struct Common {
    /// Its address.
    pub address: u64,
    /// What `DW_CFA_advance_loc` counts.
    pub code_alignment: u64,
    /// What offsets count.
    pub data_alignment: i64,
    /// The column of the return address.
    pub return_register: u8,
    /// How addresses of code are encoded in its entries.
    pub pointer_encoding: u8,
    /// Whether its entries have augmentation data (`z`).
    pub has_augmentation: bool,
    /// Whether its entries describe signal trampolines (`S`): the frame above was interrupted.
    pub signal_trampoline: bool,
    /// [`FrameSection::bias`].
    pub(crate) bias: u64,
    /// The row after its initial instructions.
    pub initial: RowState,
    /// What of this the short way needs, if the entry is plain.
    pub(crate) plain: Option<PlainCommon>,
}

/// A frame description entry.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its address.
    pub address: u64,
    /// The address of its common information entry.
    pub common: u64,
    /// The code that it describes.
    pub range: AddressRange,
    /// Its instructions.
    pub instructions: AddressRange,
}

/// The last common information entries: nearly all functions of an image share one, and parsing it would cost as much
/// as parsing the entry.
#[derive(Debug)]
pub struct CommonCache {
    entries: [Common; 8],
    /// The same of plain ones, which need no more.
    pub(crate) plain: [KnownCommon; 8],
}

impl Default for CommonCache {
    fn default() -> Self {
        CommonCache::new()
    }
}

impl CommonCache {
    /// A cache that knows nothing.
    pub const fn new() -> CommonCache {
        const NONE: Common = Common {
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
        CommonCache { entries: [NONE; 8], plain: [KnownCommon::NONE; 8] }
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        for known in &mut self.entries {
            known.address = 0;
        }
        self.plain = [KnownCommon::NONE; 8];
    }

    /// Where the entry at `address` has its place. Entries are aligned to 4 or 8 and images to pages: mix.
    #[inline]
    pub(crate) const fn index(address: u64) -> usize {
        (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61) as usize & 7
    }

    /// The common information entry at `address` of `section`.
    ///
    /// # Errors
    /// What is malformed or unreadable.
    #[inline]
    pub fn get<M: Memory>(&mut self, memory: &mut M, section: &FrameSection, address: u64) -> Result<&Common, Problem> {
        let known = &mut self.entries[CommonCache::index(address)];
        if known.address != address || known.bias != section.bias || address == 0 {
            *known = Common::parse(memory, section, address)?;
        }
        Ok(known)
    }
}

/// The head that both kinds of entry share. The cursor stands behind it, and its end is the entry's.
struct Head {
    /// Where the identifier or pointer stands.
    id_address: u64,
    id: u64,
    /// Whether the entry is in the 64-bit format.
    wide: bool,
}

/// What an entry turns out to be.
enum Kind {
    Terminator,
    Common,
    Entry { common: u64 },
}

fn head<M: Memory>(cursor: &mut Cursor<'_, M>) -> Result<Option<Head>, Problem> {
    let short = cursor.u32()?;
    let (length, wide) = match short {
        0 => return Ok(None),
        0xffff_ffff => (cursor.u64()?, true),
        0xffff_fff0..=0xffff_fffe => return Err(cursor.malformed(Malformed::OutOfRange)),
        length => (length.into(), false),
    };
    let id_address = cursor.address();
    let end = id_address.checked_add(length).ok_or(cursor.malformed(Malformed::Truncated))?;
    cursor.narrow(end)?;
    Ok(Some(Head { id_address, id: 0, wide }))
}

fn kind<M: Memory>(cursor: &mut Cursor<'_, M>, section: &FrameSection) -> Result<Kind, Problem> {
    let Some(mut head) = head(cursor)? else { return Ok(Kind::Terminator) };
    let out_of_range = Problem::Malformed { what: Malformed::OutOfRange, address: head.id_address };
    match section.dialect {
        Dialect::EhFrame => {
            // Four bytes in both formats, says the LSB; gimli and binutils read eight in the 64-bit one.
            head.id = if head.wide { cursor.u64()? } else { cursor.u32()?.into() };
            if head.id == 0 {
                return Ok(Kind::Common);
            }
            let common = head.id_address.checked_sub(head.id).ok_or(out_of_range)?;
            Ok(Kind::Entry { common })
        }
        Dialect::DebugFrame => {
            head.id = if head.wide { cursor.u64()? } else { cursor.u32()?.into() };
            let common_id = if head.wide { u64::MAX } else { 0xffff_ffff };
            if head.id == common_id {
                return Ok(Kind::Common);
            }
            let common = section.range.start.checked_add(head.id).ok_or(out_of_range)?;
            Ok(Kind::Entry { common })
        }
    }
}

impl Common {
    /// Parses the common information entry at `address`.
    ///
    /// # Errors
    /// What is malformed or unreadable; [`Malformed::Reference`] where there is another kind of entry.
    pub fn parse<M: Memory>(memory: &mut M, section: &FrameSection, address: u64) -> Result<Common, Problem> {
        let mut cursor = Cursor::new(memory, section.range, address)?;
        if !matches!(kind(&mut cursor, section)?, Kind::Common) {
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
        let mut common = Common {
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
                    common.has_augmentation = true;
                }
                b'R' => common.pointer_encoding = cursor.u8()?,
                b'S' => common.signal_trampoline = true,
                // The language-specific data's encoding: the entries' data are passed over as a whole.
                b'L' => {
                    cursor.u8()?;
                }
                b'P' => {
                    let encoding = cursor.u8()?;
                    // Passed over without following an indirection: nobody is going to call it.
                    cursor.pointer(encoding & !0x80, &Bases { text: Some(0), data: Some(0), function: Some(0) })?;
                }
                // arm64: return addresses signed with the B key; tagged stack frames
                b'B' | b'G' => {}
                // What follows is unknown, but with `z` its length is.
                _ if data_end.is_some() => break,
                // GCC 2's "eh": a pointer follows, that nobody needs
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
        common.initial = RowState::initial(&mut cursor, &common)?;
        // The column of the return address tells the architecture.
        let row = match common.return_register {
            X86_64::RA => common.initial.simple::<X86_64>(&common),
            Aarch64::RA => common.initial.simple::<Aarch64>(&common),
            _ => None,
        };
        common.plain = row.and_then(|row| PlainCommon::of(&common, row));
        Ok(common)
    }
}

impl Entry {
    /// Parses the frame description entry at the cursor, which is left at its instructions.
    ///
    /// # Errors
    /// What is malformed or unreadable; [`Malformed::Reference`] where there is another kind of entry.
    #[inline]
    pub fn parse<M: Memory>(
        cursor: &mut Cursor<'_, M>,
        section: &FrameSection,
        cache: &mut CommonCache,
    ) -> Result<Entry, Problem> {
        let address = cursor.address();
        let Kind::Entry { common } = kind(cursor, section)? else {
            return Err(Problem::Malformed { what: Malformed::Reference, address });
        };
        Entry::rest(cursor, section, cache, address, common)
    }

    /// Parses what stands behind the head.
    #[inline]
    fn rest<M: Memory>(
        cursor: &mut Cursor<'_, M>,
        section: &FrameSection,
        cache: &mut CommonCache,
        address: u64,
        common_address: u64,
    ) -> Result<Entry, Problem> {
        let common = cache.get(cursor.memory, section, common_address)?;
        let bad = cursor.malformed(Malformed::PointerEncoding);
        let start = cursor.pointer(common.pointer_encoding, &section.bases)?.ok_or(bad)?.wrapping_add(common.bias);
        // A length has the pointer's format, and is relative to nothing.
        let length = cursor.pointer(common.pointer_encoding & 0x0f, &section.bases)?.ok_or(bad)?;
        if common.pointer_encoding == DW_EH_PE_OMIT {
            return Err(bad);
        }
        let end = start.checked_add(length).ok_or(cursor.malformed(Malformed::OutOfRange))?;
        if common.has_augmentation {
            let length = cursor.uleb()?;
            cursor.skip(length)?;
        }
        let instructions = AddressRange { start: cursor.address(), end: cursor.end() };
        Ok(Entry { address, common: common_address, range: AddressRange { start, end }, instructions })
    }
}

/// Calls `found` with each frame description entry of a section in order, until it answers `true`.
///
/// This reads the whole section: for sections that have a search table use that.
///
/// # Errors
/// What is malformed or unreadable: entries behind that can't be found.
pub fn for_each_entry<M: Memory>(
    memory: &mut M,
    section: &FrameSection,
    cache: &mut CommonCache,
    mut found: impl FnMut(&Entry) -> bool,
) -> Result<(), Problem> {
    let mut at = section.range.start;
    while at < section.range.end {
        let mut cursor = Cursor::new(&mut *memory, section.range, at)?;
        match kind(&mut cursor, section)? {
            // Linkers put one at the end; those of several inputs may stand in the middle.
            Kind::Terminator => at = cursor.address(),
            Kind::Common => at = cursor.end(),
            Kind::Entry { common } => {
                let end = cursor.end();
                if found(&Entry::rest(&mut cursor, section, cache, at, common)?) {
                    return Ok(());
                }
                at = end;
            }
        }
    }
    Ok(())
}
