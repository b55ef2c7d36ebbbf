//! The named callers above every fault.
//!
//! Each adds to what the next returned, so that none is a tail call, and each adds something else, so that no optimiser
//! folds them into one.

use std::hint::black_box;

/// The innermost step of a chain: what goes wrong. Its result is of no interest; that it has one keeps callers alive.
pub type Step = fn() -> u64;

/// Runs a step below the chain, on the calling thread.
pub fn here(step: Step) {
    black_box(chain_a(step));
}

/// The outermost of the three callers.
#[inline(never)]
pub fn chain_a(step: Step) -> u64 {
    black_box(chain_b(black_box(step))).wrapping_add(1)
}

/// The middle one.
#[inline(never)]
pub fn chain_b(step: Step) -> u64 {
    black_box(chain_c(black_box(step))).wrapping_add(2)
}

/// The one that calls the step.
#[inline(never)]
pub fn chain_c(step: Step) -> u64 {
    black_box(black_box(step)()).wrapping_add(3)
}
