//! Alternate signal stacks for other threads.

/// Whether later threads get an alternate stack automatically: on Darwin they don't need one.
pub fn interposes() -> bool {
    false
}

/// Does nothing: thread creation isn't interposed on Darwin.
pub fn call_before_creation(_function: Option<extern "C" fn()>) {}
