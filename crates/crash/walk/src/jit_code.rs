//! Code that a compiler generated at run time.

use coroner_process::AddressRange;

/// Code outside all images that a compiler registered for debuggers.
#[derive(Clone, Copy, Debug)]
pub struct JitCode {
    /// The unwinder's description of the code.
    pub unwind: coroner_unwind::Image,
    /// Address range of the ELF file that was registered for the code.
    pub file: AddressRange,
    /// Value to add to that file's symbol values to get addresses (wraps).
    pub symbol_slide: u64,
}
