//! The size of alternate signal stacks.

use crate::darwin::syscall::Result;
use crate::stack::{Stack, page_size};

/// `SIGSTKSZ`: what a handler of an app that runs after Coroner's may use.
const SIZE: usize = 128 << 10;
/// The least that an alternate stack that is there already must have to be left as it is: `MINSIGSTKSZ`.
const LEAST: usize = 32 << 10;

pub(crate) fn least_size() -> usize {
    LEAST
}

pub(crate) fn new_stack() -> Result<Stack> {
    Stack::map(SIZE, page_size(), LEAST)
}
