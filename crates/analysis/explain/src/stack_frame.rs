//! Detects a frame that is larger than the remaining stack.

use coroner_report::Report;
use coroner_report::model::{Address, Crash, Frame, Thread};
use coroner_report::wire::AddressKind;

use crate::instruction::State;

/// Number of bytes below the stack pointer that a function may use, and that a call may write.
///
/// A function may use them without adjusting the stack pointer.
const RED_ZONE: u64 = 256;
/// Maximum size of a frame, in bytes.
const MAX_FRAME: u64 = 1 << 32;

/// Returns the size of the frame that contains the fault's address, if it skipped the guard page.
///
/// The guard page is where stack overflows are normally detected. The size is in bytes.
///
/// The frame may belong to the crashed function or to one of its callers. Its caller's end must be
/// on a stack, its own stack pointer below that, and the fault in between.
pub(crate) fn find_too_large(report: &Report, thread: &Thread, state: &State<'_>, crash: &Crash) -> Option<u64> {
    let address = crash.address?;
    let at = thread.frames.iter().position(|frame| frame.cfa.is_none_or(|cfa| cfa > address))?;
    let cfa = thread.frames[at].cfa?;
    let is_called = |frame: &Frame| frame.address_kind == AddressKind::RETURN;
    let sp = match at.checked_sub(1) {
        None => state.stack_pointer()?,
        // The called function's frame is below it. (A signal handler may have its own stack
        // anywhere.)
        Some(below) if thread.frames.get(1..=at + 1)?.iter().all(is_called) => thread.frames[below].cfa?.0,
        Some(_) => return None,
    };
    let last = Address(cfa.0.checked_sub(8)?);
    let of_thread = thread.stack.filter(|(start, end)| (*start..*end).contains(&last)).map(|(start, _)| start);
    let mapped = || report.mappings.iter().find(|mapping| mapping.contains(last)).map(|mapping| mapping.start);
    let start = of_thread.or_else(mapped)?;
    let is_below = sp < start.0 && address < start && address.0 >= sp.saturating_sub(RED_ZONE);
    let size = cfa.0.checked_sub(sp)?;
    (is_below && size < MAX_FRAME).then_some(size)
}
