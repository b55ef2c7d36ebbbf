//! Reading memory that the crash may have touched: a bad address is an error value, never a fault.
//!
//! A reader is a [`Memory`]. The unwinder and everything else on the crash path read through one and do not know which:
//! * [`LoadGuarded`]: plain loads from one small routine whose faults Coroner's signal handler (on Darwin: its exception
//!   threads) turns into an error. It costs about a nanosecond, needs no kernel service (so it works where a sandbox denies
//!   `process_vm_readv`), and is right only while that handler is in place, and on Linux SIGSEGV and SIGBUS unblocked: at
//!   crash time, or outside a signal handler on a thread that does not block them.
//! * [`KernelCopy`]: the kernel copies (`process_vm_readv` on Linux, `vm_read_overwrite` on Darwin). It costs about a
//!   microsecond a call whatever its size up to a page, so it is always put behind a [`Windowed`].
//! * `CheckedMemory` (Linux, Android): the kernel copies, through a pipe where it refuses `process_vm_readv`. For outside crash
//!   time, before a handler is in place.
//! * [`Windowed`]: a few cached windows of 4 KiB over another reader.
//! * [`Snapshot`]: memory that was saved before, for another process to read.

#[cfg(supported)]
mod guarded_load;
mod reader;
mod snapshot;
mod windowed;

#[cfg(all(supported, any(target_os = "linux", target_os = "android")))]
pub use crate::os::kernel_copy::{CheckedMemory, is_accessible};
#[cfg(supported)]
pub use crate::os::kernel_copy::{KernelCopy, PresentPages};
#[cfg(supported)]
pub use guarded_load::{LoadGuarded, recover_guarded_load};
pub(crate) use reader::read_out_of_line;
pub use reader::{BLOCK, Memory, Unreadable, first_readable, read_text, u16_at, u32_at, u64_at};
pub use snapshot::{Snapshot, SnapshotRange};
pub use windowed::{WINDOW, Windowed};
