//! What notices that the process is dying. A monitor is one file (one for each system, where systems differ): it takes what
//! it needs in `install`, hands each death to [`crate::session`], and gives everything back in `uninstall`.

pub mod caught_panic;
pub mod exception;
pub mod exit;
pub mod hang;
#[cfg(target_vendor = "apple")]
pub(crate) mod mach;
pub(crate) mod signal;
