//! Code that a compiler made while the process ran.

use coroner_process::AddressRange;

/// Code in no image that a compiler registered for debuggers.
#[derive(Clone, Copy, Debug)]
pub struct JitCode {
    /// What the unwinder needs of it.
    pub unwind: coroner_unwind::Image,
    /// Where the ELF file that was registered for it is.
    pub file: AddressRange,
    /// What to add to the values of that file's symbols to get addresses (wraps).
    pub symbol_slide: u64,
}
