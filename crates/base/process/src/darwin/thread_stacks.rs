//! Alternate signal stacks for other threads.

/// Whether later threads get an alternate stack automatically: on Darwin they don't need one.
pub fn interposes() -> bool {
    false
}
