//! Finds names for the addresses of a backtrace.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use coroner_process::memory::Memory;
#[cfg(supported)]
use coroner_process::symtab::Extent;
use coroner_process::symtab::{LookupAddress, NameScan};
use coroner_report::model::is_runtime_code;

use super::Backtrace;
#[cfg(supported)]
use super::images::is_listed;
#[cfg(supported)]
use super::loaded_image::MappedFile;
use super::loaded_image::{LoadedImage, SymbolTable};
#[cfg(supported)]
use super::os;
use crate::naming::demangle;

/// Maximum number of symbols read from one table; more than any image has.
const MAX_SYMBOLS: u32 = 50_000_000;

/// A frame with its names.
#[derive(Clone, Debug)]
pub struct NamedFrame {
    /// The frame's address (avma).
    pub address: u64,
    /// The frame's image.
    pub image: Option<Arc<str>>,
    /// The address relative to the image's first byte.
    pub image_offset: u64,
    /// The function, demangled.
    pub function: Option<Arc<str>>,
    /// The address relative to the function's first byte.
    pub function_offset: u64,
    /// Whether the frame is the app's own code.
    ///
    /// This means that its image is the app's, and its function does not belong to a runtime.
    pub in_app: bool,
}

impl fmt::Display for NamedFrame {
    /// Writes `image function + offset`, `image + offset`, or the address.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.image, &self.function) {
            (Some(image), Some(function)) => write!(f, "{image} {function} + {}", self.function_offset),
            (Some(image), None) => write!(f, "{image} + {:#x}", self.image_offset),
            (None, _) => write!(f, "{:#018x}", self.address),
        }
    }
}

/// A backtrace's frames with their names.
#[derive(Debug)]
pub struct Names {
    frames: Vec<NamedFrame>,
    addresses: Vec<u64>,
    /// The state of the images for which these names are valid.
    identity: u64,
}

impl Names {
    /// The frames, innermost first.
    pub fn frames(&self) -> &[NamedFrame] {
        &self.frames
    }

    /// Whether these names belong to this stack, and not to another one with the same hash.
    pub(super) fn belongs_to(&self, backtrace: &Backtrace) -> bool {
        self.addresses == backtrace.addresses() && self.identity == backtrace.images.identity()
    }

    /// Names a backtrace by one pass over each image's symbol table.
    pub(super) fn find(backtrace: &Backtrace) -> Names {
        let mut frames: Vec<NamedFrame> = Vec::with_capacity(backtrace.addresses().len());
        let mut by_image: BTreeMap<u64, (Arc<LoadedImage>, Vec<usize>)> = BTreeMap::new();
        for (index, address) in backtrace.addresses().iter().enumerate() {
            let mut frame = NamedFrame {
                address: *address,
                image: None,
                image_offset: 0,
                function: None,
                function_offset: 0,
                in_app: false,
            };
            let lookup = backtrace.lookup_address(index).unwrap_or(*address);
            if let Some(image) = backtrace.images.image_at(lookup) {
                let name = image.path.file_name().unwrap_or(image.path.as_os_str()).to_string_lossy();
                frame.image = Some(Arc::from(name.as_ref()));
                frame.image_offset = address.wrapping_sub(image.range.start);
                frame.in_app = image.in_app;
                by_image.entry(image.range.start).or_insert_with(|| (Arc::clone(image), Vec::new())).1.push(index);
            }
            frames.push(frame);
        }
        let mut scan = Box::new(NameScan::<{ Backtrace::MAX_FRAMES }>::new());
        for (image, indexes) in by_image.values() {
            scan.clear();
            for index in indexes {
                let lookup = backtrace.lookup_address(*index).unwrap_or_default();
                scan.push(LookupAddress::of_instruction(lookup.wrapping_sub(image.slide)), *index as u32);
            }
            let mut set_name = |index: usize, name: &[u8], start: u64| {
                if let Some(frame) = frames.get_mut(index) {
                    let name = demangle(&String::from_utf8_lossy(name));
                    frame.in_app &= !is_runtime_code(Some(&name), None);
                    frame.function = Some(Arc::from(name));
                    frame.function_offset = frame.address.wrapping_sub(start.wrapping_add(image.slide));
                }
            };
            let symbols = image.symbols.get_or_init(|| SymbolTable::open(image));
            let Some(symbols) = symbols else { continue };
            if symbols.names(&mut scan, image, |index, name, start| set_name(index as usize, name, start)) {
                continue;
            }
            // The image was unloaded after the capture.
            #[cfg(feature = "symbolicate")]
            if let Some(file) = find_file(image) {
                for index in indexes {
                    let lookup = backtrace.lookup_address(*index).unwrap_or_default();
                    let address = LookupAddress::of_instruction(lookup.wrapping_sub(image.slide));
                    if let Some((name, start)) = file.linker_symbol(address) {
                        set_name(*index, name, start);
                    }
                }
            }
        }
        Names { frames, addresses: backtrace.addresses().to_vec(), identity: backtrace.images.identity() }
    }
}

impl SymbolTable {
    #[cfg(not(supported))]
    fn open(_image: &LoadedImage) -> Option<SymbolTable> {
        None
    }

    #[cfg(supported)]
    fn open(image: &LoadedImage) -> Option<SymbolTable> {
        if image.named_in_memory {
            return Some(SymbolTable::Memory);
        }
        let loaded = os::candidate_paths(image).into_iter().filter_map(|path| MappedFile::open(&path));
        let mut loaded = loaded.filter(|map| os::is_loaded_from(image, map) && is_listed(image));
        // The file may be another one with the same id, if the same version was installed again.
        // The id is compared when the file is read.
        let same_id = || MappedFile::open(&image.path).filter(|_| !image.build_id.is_empty());
        loaded.next().or_else(same_id).map(SymbolTable::File)
    }

    /// Calls `each` with index, name and start (svma) of every address in `scan` that has a name.
    ///
    /// Returns `false`, without calling `each`, if the symbols were in memory and the image is no
    /// longer loaded.
    #[cfg_attr(not(supported), expect(unused_mut, unused_variables))]
    fn names(
        &self,
        scan: &mut NameScan<{ Backtrace::MAX_FRAMES }>,
        image: &LoadedImage,
        mut each: impl FnMut(u32, &[u8], u64),
    ) -> bool {
        let mut buffer = [0; 1024];
        match self {
            #[cfg(not(supported))]
            SymbolTable::File(_) => true,
            #[cfg(supported)]
            SymbolTable::File(map) => {
                let Some(mut memory) = MappedFile::reader() else { return true };
                let extent = Extent { address: map.address, size: map.length as u64 };
                let id = (!image.build_id.is_empty()).then_some(&image.build_id[..]);
                if scan.elf_file(&mut *memory, extent, id, MAX_SYMBOLS).is_ok() {
                    for_each_name(scan, &mut *memory, &mut buffer, &mut each);
                }
                true
            }
            #[cfg(not(supported))]
            SymbolTable::Memory => false,
            #[cfg(supported)]
            SymbolTable::Memory => {
                let Some(mut memory) = coroner_walk::LiveReader::new() else { return true };
                let mut found: Vec<(u32, Vec<u8>, u64)> = Vec::new();
                if os::scan_memory(scan, &mut memory, image, MAX_SYMBOLS).is_ok() {
                    let mut keep = |index, name: &[u8], start| found.push((index, name.to_vec(), start));
                    for_each_name(scan, &mut memory, &mut buffer, &mut keep);
                }
                // Another thread may have unloaded the image in the meantime and loaded another one
                // at its address. The names are valid only if the image is still loaded after the
                // read.
                let is_there = os::is_loaded(&mut memory, image);
                if is_there {
                    for (index, name, start) in &found {
                        each(*index, name, *start);
                    }
                }
                is_there
            }
        }
    }
}

/// Returns the image's file, or the slice of it, that has the image's id.
#[cfg(feature = "symbolicate")]
fn find_file(image: &LoadedImage) -> Option<coroner_symbols::SymbolFile> {
    let id = coroner_symbols::DebugId::new(&image.build_id)?;
    coroner_symbols::SymbolFile::open(&image.path).ok()?.into_iter().find(|file| file.debug_id() == Some(&id))
}

fn for_each_name<M: Memory>(
    scan: &mut NameScan<{ Backtrace::MAX_FRAMES }>,
    memory: &mut M,
    buffer: &mut [u8],
    each: &mut impl FnMut(u32, &[u8], u64),
) {
    scan.for_each_name(memory, buffer, |named| each(named.tag, named.name, named.symbol_svma));
}
