//! A frame that is larger than what the stack has left.

use coroner_report::Report;
use coroner_report::model::{Address, Crash, Frame, Thread};
use coroner_report::wire::AddressKind;

use crate::instruction::State;

/// How far below the stack pointer a function uses its stack without saying so, and a call writes.
const RED_ZONE: u64 = 256;
/// A frame is not larger.
const MAX_FRAME: u64 = 1 << 32;

/// Bytes of the frame that the fault lies in, of the crashed function or of one that called it, if its caller's end is on a stack, its own stack pointer is
/// below that, and the fault is there: the frame went over the guard page, which is where a stack overflow is looked for as it happens.
pub(crate) fn too_large(report: &Report, thread: &Thread, state: &State<'_>, crash: &Crash) -> Option<u64> {
    let address = crash.address?;
    let at = thread.frames.iter().position(|frame| frame.cfa.is_none_or(|cfa| cfa > address))?;
    let cfa = thread.frames[at].cfa?;
    let is_called = |frame: &Frame| frame.address_kind == AddressKind::RETURN;
    let sp = match at.checked_sub(1) {
        None => state.stack_pointer()?,
        // What it called has its frame below it. (A signal's handler may have a stack of its own, somewhere.)
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
