//! Where an image's symbols are at crash time: in memory, where dyld has mapped `__LINKEDIT` of every image.

use coroner_process::images::Image;
use coroner_process::memory::Memory;
use coroner_scan::{MachO, NameScan, Placement, ScanError};

use crate::sections::symbol_names::{AT_ONCE, MAX_SYMBOLS};

/// What is open for the time of one image's scan: nothing.
#[derive(Debug)]
pub(crate) struct Source;

impl Source {
    /// Nothing.
    pub(crate) const NONE: Source = Source;

    /// Gives back what is open.
    #[expect(clippy::unused_self, reason = "the other systems have something to give back")]
    pub(crate) fn close(self) {}

    /// Scans an image's symbols.
    #[expect(clippy::unused_self, reason = "as above")]
    pub(crate) fn scan<M: Memory>(
        &mut self,
        _images: &coroner_walk::ImageList,
        image: &Image,
        scan: &mut NameScan<AT_ONCE>,
        memory: &mut M,
    ) -> Result<(), ScanError> {
        let header = MachO::read(memory, image.range.start, Placement::Loaded)?;
        // One of its tables may be damaged, or too long: the names that were found are right.
        let _ = scan.macho(memory, &header, MAX_SYMBOLS);
        Ok(())
    }
}
