//! The frames that were walked last.

use coroner_report::wire::Frame;

/// The last frames of a deep stack.
pub(crate) const LAST_FRAMES: usize = 128;

/// A ring of the frames that were walked last.
#[derive(Debug)]
pub(crate) struct FrameRing {
    pub(crate) frames: [Frame; LAST_FRAMES],
    /// The canonical frame address of the innermost frame, 0 if it is not known.
    pub(crate) first_cfa: u64,
    /// How many frames were walked.
    pub(crate) walked: usize,
}
