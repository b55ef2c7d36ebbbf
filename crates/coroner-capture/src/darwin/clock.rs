//! Time, from the kernel's common page.

/// Nanoseconds since the epoch, UTC.
pub(crate) fn wall() -> u64 {
    coroner_machine::threads::wall_now()
}
