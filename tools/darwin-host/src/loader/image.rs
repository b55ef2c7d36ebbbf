//! An image in memory: its mapped and slid segments, and queries about it.

use std::{ffi::CString, path::Path};

use super::{
    fixups,
    macho::{self, File, Section},
    tlv,
};
use crate::host::kernel::pages;

/// An image while its fixups are applied.
pub(super) struct Mapped {
    pub(super) name: String,
    /// The address of its header in the file.
    pub(super) preferred: u64,
    pub(super) slide: usize,
    low: u64,
    high: u64,
}

impl Mapped {
    /// Reads the pointer-sized word at an unslid address.
    ///
    /// A malformed file's out-of-range address is refused.
    pub(super) fn read(&self, address: u64) -> u64 {
        // SAFETY: checked to be within the image, which is mapped and still writable.
        unsafe { (self.check(address) as *const u64).read_unaligned() }
    }

    pub(super) fn write(&self, address: u64, value: u64) {
        // SAFETY: as above.
        unsafe { (self.check(address) as *mut u64).write_unaligned(value) }
    }

    fn check(&self, address: u64) -> usize {
        if address < self.low || address.saturating_add(8) > self.high {
            crate::host::kernel::ending::refuse!("{}: a fixup at {address:#x}, outside of it", self.name);
        }
        (address as usize).wrapping_add(self.slide)
    }
}

/// A loaded image.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) path: CString,
    /// The address of the image's header.
    pub(crate) header: usize,
    pub(crate) slide: usize,
    /// The image's complete range.
    pub(crate) range: (usize, usize),
    /// `__TEXT`.
    pub(crate) text: (usize, usize),
    pub(crate) sections: Vec<Section>,
    /// The address of `main`.
    pub(crate) entry: Option<usize>,
    /// Address of nlist_64 entries, their count, address of the strings, size of the strings.
    pub(crate) symbols: (usize, usize, usize, usize),
    /// `dlopen`'s count; the main program and images loaded with it are never unloaded.
    pub(crate) references: usize,
    /// Whether its initializers ran.
    pub(crate) initialised: bool,
}

impl Image {
    /// Maps the file, applies its fixups, and protects its segments. Its dylibs must be loaded.
    ///
    /// # Errors
    /// A description of the problem if the file is invalid.
    pub(super) fn load(path: &Path, file: &File, resolve: fixups::Resolver) -> Result<Image, String> {
        let name = path.display().to_string();
        let mapped_segments = || file.segments.iter().filter(|s| s.name != "__PAGEZERO" && s.size > 0);
        let text = mapped_segments().find(|s| s.name == "__TEXT").ok_or_else(|| format!("{name}: it has no __TEXT"))?;
        let low = mapped_segments().map(|s| s.address).min().unwrap_or(0);
        let high = mapped_segments().map(|s| s.address + s.size).max().unwrap_or(0);
        let base = pages::map(usize::try_from(high - low).map_err(|_| format!("{name}: its segments overlap"))?);
        if base.is_null() {
            return Err(format!("{name}: no memory for it"));
        }
        let slide = (base as usize).wrapping_sub(low as usize);
        for segment in mapped_segments() {
            let (from, size) = (segment.file_offset as usize, segment.file_size.min(segment.size) as usize);
            let bytes =
                file.bytes.get(from..from + size).ok_or_else(|| format!("{name}: {} is cut off", segment.name))?;
            // SAFETY: the destination is in the fresh mapping: low ≤ address and address + size ≤
            // high.
            unsafe {
                let to = (segment.address as usize).wrapping_add(slide) as *mut u8;
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, size);
            }
        }
        let mapped = Mapped { name, preferred: text.address, slide, low, high };
        fixups::apply(file, &mapped, resolve);
        let slid = |address: u64| (address as usize).wrapping_add(slide);

        let linkedit = mapped_segments().find(|s| s.name == "__LINKEDIT");
        let symbols = match (file.symbols, linkedit) {
            (Some([at, count, strings, size]), Some(linkedit)) => {
                let place =
                    |offset: u32| slid((linkedit.address + u64::from(offset)).wrapping_sub(linkedit.file_offset));
                (place(at), count as usize, place(strings), size as usize)
            }
            _ => (0, 0, 0, 0),
        };
        let image = Image {
            path: CString::new(mapped.name.clone()).map_err(|_| "a zero byte in a path".to_owned())?,
            header: slid(text.address),
            slide,
            range: (slid(low), slid(high)),
            text: (slid(text.address), slid(text.address + text.size)),
            sections: file.sections.clone(),
            entry: file.entry.map(|offset| slid(text.address).wrapping_add(offset as usize)),
            symbols,
            references: 0,
            initialised: false,
        };
        tlv::prepare(&image);
        for segment in mapped_segments() {
            let start = slid(segment.address);
            let end = pages::round(slid(segment.address + segment.size));
            let protection = segment.protection & if segment.read_only_after_fixups { 0b101 } else { 0b111 };
            // SAFETY: the image's own pages. Mach's protection bits are Linux's: read 1, write 2,
            // execute 4.
            unsafe {
                libc::mprotect(
                    (start & !(pages::PAGE - 1)) as *mut libc::c_void,
                    end - (start & !(pages::PAGE - 1)),
                    protection,
                )
            };
        }
        Ok(image)
    }

    /// Returns a section's range in memory; zeros if the image doesn't have it.
    pub(crate) fn section(&self, segment: &str, name: &str) -> (usize, usize) {
        self.sections
            .iter()
            .find(|s| s.segment == segment && s.name == name)
            .map_or((0, 0), |s| ((s.address as usize).wrapping_add(self.slide), s.size as usize))
    }

    /// Whether threads may have copies of its variables.
    pub(crate) fn has_thread_locals(&self) -> bool {
        self.sections.iter().any(|s| s.kind == macho::S_THREAD_LOCAL_VARIABLES)
    }

    /// Returns the sections of a type, in memory.
    pub(crate) fn sections_of(&self, kind: u32) -> impl Iterator<Item = (usize, usize)> + '_ {
        let slide = self.slide;
        self.sections
            .iter()
            .filter(move |s| s.kind == kind)
            .map(move |s| ((s.address as usize).wrapping_add(slide), s.size as usize))
    }

    /// Returns the image's symbols: name, type byte, address in memory.
    ///
    /// Source: `struct nlist_64`, <mach-o/nlist.h>.
    pub(crate) fn symbols(&self) -> impl Iterator<Item = (&str, u8, usize)> {
        let (table, count, strings, size) = self.symbols;
        // SAFETY: both are in the image's __LINKEDIT, which is mapped while the image is loaded.
        let (table, strings) = unsafe {
            if count == 0 {
                (&[][..], &[][..])
            } else {
                let table = std::slice::from_raw_parts(table as *const u8, count * 16);
                (table, std::slice::from_raw_parts(strings as *const u8, size))
            }
        };
        table.as_chunks::<16>().0.iter().filter_map(move |entry| {
            let name = macho::text_at(strings, macho::u32_at(entry, 0)? as usize)?;
            Some((name, entry[4], (macho::u64_at(entry, 8)? as usize).wrapping_add(self.slide)))
        })
    }

    /// Returns the address of an exported symbol.
    ///
    /// It is external (N_EXT 1) and defined in a section (N_SECT 0xe).
    pub(crate) fn export(&self, name: &str) -> Option<usize> {
        self.symbols().find(|&(n, kind, _)| kind & 0xe0 == 0 && kind & 0xf == 0xf && n == name).map(|(_, _, at)| at)
    }
}
