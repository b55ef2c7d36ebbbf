//! Whether a memory fault is a stack that is full.

use coroner_process::images::Mappings;
use coroner_report::wire::Access;

use crate::crash_context::CrashContext;

/// The most that one function's frame reaches below what was touched before. (Larger frames are probed page by page, by
/// compilers that know of stack overflows at all.)
const FRAME: u64 = 1 << 20;

/// How far above its lowest page a full stack's stack pointer may still be: the frame that did not fit, where the stack
/// pointer is moved only after the probe.
const LEFT: u64 = 64 << 10;

/// The kernel keeps this much free below a stack that grows, `stack_guard_gap`, 256 pages by default.
const GAP: u64 = 256 * 4096;

/// Whether the thread ran out of stack: it read or wrote near its stack pointer, in a guard page or below all memory that
/// its stack has, and the memory above is nearly used up.
///
/// No thread library is asked (its tables are behind locks): the kernel's list of mappings says.
pub(crate) fn is_overflow(context: &CrashContext, mappings: &Mappings) -> bool {
    let Some(address) = context.address.filter(|_| context.is_memory_fault) else { return false };
    if context.access == Some(Access::EXECUTE) {
        return false;
    }
    let sp = context.registers.sp();
    if address > sp.saturating_add(LEFT) || address < sp.saturating_sub(FRAME) {
        return false;
    }
    let Ok(Some(at)) = mappings.at_or_after(address) else { return false };
    let stack = if !at.contains(address) {
        at
    } else if at.permissions.is_guard() {
        match mappings.at_or_after(at.end) {
            Ok(Some(above)) if above.start == at.end => above,
            _ => return false,
        }
    } else {
        return false;
    };
    stack.permissions.read
        && stack.permissions.write
        && stack.start.saturating_sub(address) <= FRAME.max(GAP)
        && sp < stack.start.saturating_add(LEFT)
}
