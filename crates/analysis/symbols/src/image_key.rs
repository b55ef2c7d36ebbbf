//! The identity of an image, which a symbol file must match to name its addresses.

use std::path::PathBuf;

use coroner_report::{model::Image, wire::ImageKind};

use crate::{
    debug_id::DebugId,
    file_kind::{Arch, FileKind},
};

/// The identity of a report's image.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ImageKey {
    /// The image's path on the machine where the process ran.
    pub path: PathBuf,
    /// The image's GNU build id or `LC_UUID`, if any.
    pub debug_id: Option<DebugId>,
    /// The image's format.
    pub kind: FileKind,
    /// The architecture; selects the slice in a fat file without an id.
    pub arch: Arch,
    /// The svma of the image's first byte, to which Breakpad's addresses are relative.
    ///
    /// It is the lowest `PT_LOAD` for ELF (0 except for programs linked at a fixed address),
    /// `__TEXT` for Mach-O (0x1_0000_0000 for programs).
    pub base_svma: u64,
    /// Whether the file at the image's path is or may be a different one.
    ///
    /// It was replaced while the process ran, or changed since. Such a file is only used if it has
    /// the image's id.
    pub replaced: bool,
}

impl ImageKey {
    /// Returns the key of a report's image. `arch` is the process's architecture, for images that
    /// don't specify their own.
    pub fn from_image(image: &Image, arch: Arch) -> Self {
        // Apple's `mach/machine.h`: CPU_TYPE_X86 is 7, CPU_TYPE_ARM 12, CPU_ARCH_ABI64 0x0100_0000.
        let arch = match image.cpu {
            Some((0x0100_0007, _)) => Arch::X86_64,
            Some((0x0100_000c, _)) => Arch::Aarch64,
            _ => arch,
        };
        Self {
            path: PathBuf::from(&image.path),
            debug_id: DebugId::new(&image.build_id),
            kind: match image.kind {
                ImageKind::MACHO => FileKind::MachO,
                ImageKind::PE => FileKind::Pe,
                _ => FileKind::Elf,
            },
            arch,
            base_svma: image.to_svma(image.load_address),
            replaced: image.replaced,
        }
    }
}
