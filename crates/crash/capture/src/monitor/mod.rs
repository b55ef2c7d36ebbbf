//! Monitors: they detect that the process is dying. A monitor is one file (or one per system, where
//! systems differ): it takes what it needs in `install`, passes each death to [`crate::session`],
//! and gives everything back in `uninstall`.

pub mod caught_panic;
pub mod exception;
pub mod exit;
pub mod hang;
#[cfg(target_vendor = "apple")]
pub(crate) mod mach;
pub(crate) mod signal;
