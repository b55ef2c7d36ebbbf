//! The named callers of every fault.
//!
//! Each adds to its callee's result, so that no call is a tail call, and each adds a different
//! number, so that an optimizer can't merge them.

use std::hint::black_box;

/// The fault, called by the innermost function of the chain.
///
/// The result doesn't matter, but having one keeps the callers on the stack.
pub type Step = fn() -> u64;

/// Runs a step through the chain, on the calling thread.
pub fn here(step: Step) {
    black_box(chain_a(step));
}

/// The outermost of the three callers.
#[inline(never)]
pub fn chain_a(step: Step) -> u64 {
    black_box(chain_b(black_box(step))).wrapping_add(1)
}

/// The middle caller.
#[inline(never)]
pub fn chain_b(step: Step) -> u64 {
    black_box(chain_c(black_box(step))).wrapping_add(2)
}

/// The innermost caller, which calls the step.
#[inline(never)]
pub fn chain_c(step: Step) -> u64 {
    black_box(black_box(step)()).wrapping_add(3)
}
