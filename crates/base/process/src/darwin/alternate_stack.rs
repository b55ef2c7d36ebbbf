//! The size of alternate signal stacks.

use crate::darwin::syscall::Result;
use crate::stack::{Stack, page_size};

/// Size of a new stack: `SIGSTKSZ`, which a handler of the app that runs after Coroner's may use.
const SIZE: usize = 128 << 10;
/// Minimum size of an existing alternate stack for it to be kept: `MINSIGSTKSZ`.
const LEAST: usize = 32 << 10;

pub(crate) fn least_size() -> usize {
    LEAST
}

pub(crate) fn new_stack() -> Result<Stack> {
    Stack::map(SIZE, page_size(), LEAST)
}
