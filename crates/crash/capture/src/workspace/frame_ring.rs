//! Ring of the most recently walked frames.

use coroner_report::wire::Frame;

/// Number of frames kept from the end of a deep stack.
pub(crate) const LAST_FRAMES: usize = 128;

/// Ring of the most recently walked frames.
#[derive(Debug)]
pub(crate) struct FrameRing {
    pub(crate) frames: [Frame; LAST_FRAMES],
    /// Canonical frame address of the innermost frame, 0 if unknown.
    pub(crate) first_cfa: u64,
    /// Number of frames walked.
    pub(crate) walked: usize,
}
