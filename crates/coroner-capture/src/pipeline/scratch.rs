//! What the owner of the report works with: preallocated, touched at install.

use coroner_machine::recovery;
use coroner_report::wire::Fault;
use coroner_unwind::RuleCache;

use super::frames::Ring;
use super::names::Names;
use super::writer::BUFFER;
use crate::os::images::Loaded;

/// The most stack memory that is kept of a thread.
pub(crate) const STACK_MEMORY: usize = 32 << 10;

/// The owner's workspace. All zero is a valid value of every field but those that [`Scratch::prepare`] sets.
pub(crate) struct Scratch {
    /// Where the section that is being written can be left.
    pub point: recovery::Point,
    /// A fault of the crash path that is not written yet.
    pub fault: Option<Fault>,
    /// The deadline has passed.
    pub expired: bool,
    /// The section's buffer.
    pub buffer: [u8; BUFFER],
    /// Rules of the unwinder, shared by all threads of one report.
    pub cache: RuleCache,
    /// The last frames of the thread that is walked.
    pub ring: Ring,
    /// The images.
    pub images: Loaded,
    /// Addresses to name, and what they are named with.
    pub names: Names,
    /// Stack memory on its way into the buffer.
    pub stack_memory: [u8; STACK_MEMORY],
}

impl Scratch {
    /// Gives a scratch in zeroed memory its first values (normal life).
    ///
    /// # Safety
    /// `at` points to a mapping of this type's size and alignment, zeroed or prepared before, that nobody else uses.
    pub(crate) unsafe fn prepare(at: *mut Scratch, images: Loaded) {
        // SAFETY: by the contract. The large fields are arrays of bytes or frames, and tables whose zero is empty: they are
        // not built on the stack.
        unsafe {
            (&raw mut (*at).point).write(recovery::Point::new());
            (&raw mut (*at).fault).write(None);
            (&raw mut (*at).expired).write(false);
            (&raw mut (*at).ring).write(Ring::new());
            (&raw mut (*at).cache).write(RuleCache::new());
            (&raw mut (*at).images).write(images);
            (&raw mut (*at).names).write(Names::new());
        }
    }
}
