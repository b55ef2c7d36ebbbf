//! Identity of an image: what a symbol file must match to name its addresses.

use std::path::PathBuf;

use coroner_report::{model::Image, wire::ImageKind};

use crate::{
    debug_id::DebugId,
    file_kind::{Arch, FileKind},
};

/// Which image of a report an address lies in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ImageKey {
    /// Its path on the machine where the process ran.
    pub path: PathBuf,
    /// Its GNU build id or `LC_UUID`, if it had one.
    pub debug_id: Option<DebugId>,
    /// ELF or Mach-O.
    pub kind: FileKind,
    /// The processor; picks the slice of a fat file that has no id.
    pub arch: Arch,
    /// The svma of the image's first byte: the lowest `PT_LOAD` of ELF (0 but for programs linked at a fixed address),
    /// `__TEXT` of Mach-O (0x1_0000_0000 for programs). Breakpad's addresses count from it.
    pub base_svma: u64,
    /// Whether the file at its path is known, or has to be feared, to be another one than was loaded: it was replaced while the process ran, or
    /// changed since. A file there is then used only if it has the image's id.
    pub replaced: bool,
}

impl ImageKey {
    /// The key of a report's image. `arch` is the processor of the process, for images that don't say their own.
    pub fn of_image(image: &Image, arch: Arch) -> Self {
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
