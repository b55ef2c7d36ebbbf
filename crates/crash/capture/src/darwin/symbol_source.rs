//! Where an image's symbols are at crash time: in memory, where dyld has mapped `__LINKEDIT` of every image.

use coroner_process::images::Image;
use coroner_process::memory::Memory;
use coroner_process::symtab::{MachO, NameScan, Placement, ScanError};

use crate::limits::{ADDRESSES_PER_SCAN, MAX_SYMBOLS};

/// What is open for the time of one image's scan: nothing.
#[derive(Debug)]
pub(crate) struct Source;

/// Room for paths: none is needed.
pub(crate) type Paths = ();

impl Source {
    /// Nothing.
    pub(crate) const NONE: Source = Source;

    /// Gives back what is open.
    #[expect(clippy::unused_self, reason = "the other systems have something to give back")]
    pub(crate) fn close(&mut self) {}

    /// Whether the file at an image's path is no longer the one that is mapped. Not asked: every image's names are in memory.
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
