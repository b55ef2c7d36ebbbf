//! Reads memory that the crash may have damaged: a bad address is an error value, never a fault.
//!
//! A reader is a [`Memory`]. The unwinder and everything else on the crash path read through one
//! without knowing which:
//! * [`LoadGuarded`]: plain loads from one small routine whose faults Coroner's signal handler (on
//!   Darwin: its exception threads) turns into an error. It costs about a nanosecond and needs no
//!   kernel service (so it works where a sandbox denies `process_vm_readv`). It may be used only
//!   while that handler is in place, and on Linux while SIGSEGV and SIGBUS are unblocked: at crash
//!   time, or outside a signal handler on a thread that doesn't block them.
//! * [`KernelCopy`]: copies by the kernel (`process_vm_readv` on Linux, `vm_read_overwrite` on
//!   Darwin). It costs about a microsecond per call for any size up to a page, so it is always used
//!   through a [`Windowed`].
//! * `CheckedMemory` (Linux, Android): copies by the kernel, through a pipe if it refuses
//!   `process_vm_readv`. For use outside crash time, before a handler is in place.
//! * [`Windowed`]: a few cached windows of 4 KiB over another reader.
//! * [`Snapshot`]: memory that was saved earlier, read by another process.

#[cfg(supported)]
mod guarded_load;
mod reader;
mod snapshot;
mod windowed;

#[cfg(all(supported, any(target_os = "linux", target_os = "android")))]
pub use crate::os::kernel_copy::CheckedMemory;
#[cfg(supported)]
pub use crate::os::kernel_copy::{KernelCopy, PresentPages, is_accessible, is_zero};
#[cfg(supported)]
pub use guarded_load::{LoadGuarded, recover_guarded_load};
pub(crate) use reader::read_out_of_line;
pub use reader::{BLOCK, Memory, Unreadable, first_readable, read_text, u16_at, u32_at, u64_at};
pub use snapshot::{Snapshot, SnapshotRange};
pub use windowed::{WINDOW, Windowed};
