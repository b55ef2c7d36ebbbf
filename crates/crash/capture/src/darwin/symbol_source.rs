//! Source of an image's symbols at crash time: memory, where dyld has mapped `__LINKEDIT` of every
//! image.

use coroner_process::images::Image;
use coroner_process::memory::Memory;
use coroner_process::symtab::{MachO, NameScan, Placement, ScanError};

use crate::limits::{ADDRESSES_PER_SCAN, MAX_SYMBOLS};

/// Resources that are open during one image's scan: none.
#[derive(Debug)]
pub(crate) struct Source;

/// Buffers for paths: none are needed.
pub(crate) type Paths = ();

impl Source {
    /// The empty source.
    pub(crate) const NONE: Source = Source;

    /// Releases what is open.
    #[expect(clippy::unused_self, reason = "the other systems have something to give back")]
    pub(crate) fn close(&mut self) {}

    /// Returns `false`: whether an image's file was replaced isn't checked, since every image's
    /// names are in memory.
    #[expect(clippy::unused_self, reason = "as above")]
    pub(crate) fn is_replaced(
        &mut self,
        _images: &coroner_walk::ImageList,
        _image: &Image,
        _paths: &mut Paths,
    ) -> bool {
        false
    }

    /// Scans an image's symbols.
    #[expect(clippy::unused_self, reason = "as above")]
    pub(crate) fn scan<M: Memory>(
        &mut self,
        _images: &coroner_walk::ImageList,
        image: &Image,
        _is_replaced: bool,
        _paths: &mut Paths,
        scan: &mut NameScan<ADDRESSES_PER_SCAN>,
        memory: &mut M,
    ) -> Result<(), ScanError> {
        let header = MachO::read(memory, image.range.start, Placement::Loaded)?;
        // One of its tables may be damaged, or too long: the names that were found are right.
        let _ = scan.macho(memory, &header, MAX_SYMBOLS);
        Ok(())
    }
}
