//! Layout of the file with the reports of a process's children: a header, then slots.
//!
//! A child made by fork that can't create files, because it has dropped its privileges, claims a
//! slot when it crashes. The file is mapped by the process and its children, and read and written
//! by the process that delivers the reports. The header consists of 32-bit words in the machine's
//! byte order; a slot is a report's file, then a run state.

/// Name of the file in a run's directory.
pub const FILE: &str = "children";
/// Size of the header in bytes, a multiple of all page sizes.
pub const HEADER: usize = 64 << 10;
/// Bytes of the header that are used.
pub const USED: usize = 4096;
/// First word of the header. A file of another layout has another one.
pub const MAGIC: u32 = u32::from_le_bytes(*b"CRC1");

/// Word: the magic number.
pub const MAGIC_WORD: usize = 0;
/// Word: the number of slots.
pub const SLOTS_WORD: usize = 1;
/// Word: bytes for a slot's report, a multiple of all page sizes.
pub const REPORT_WORD: usize = 2;
/// Word: bytes for a slot's run state, a multiple of all page sizes.
pub const STATE_WORD: usize = 3;
/// Word: size of the run state in bytes.
pub const STATE_SIZE_WORD: usize = 4;
/// Word: number of children whose report was finished, in a slot or in a run of their own. A futex.
pub const FINISHED_WORD: usize = 5;
/// Word: number of crashes that left no report, because no slot was free.
pub const LEFT_OUT_WORD: usize = 6;

/// Maximum number of slots.
pub const MAX_SLOTS: usize = 32;
/// Maximum size of all slots in bytes.
pub const MAX_BYTES: usize = 64 << 20;
/// Maximum size of a slot's report in bytes.
pub const MAX_REPORT: usize = 512 << 10;

/// Word of a slot's entry: its [`status`].
pub const STATUS: usize = 0;
/// Words of a slot's entry: when it was claimed, in nanoseconds since the Unix epoch, low half
/// first.
pub const TIME: usize = 2;
/// Words of a slot's entry: the ID of the run that the report will be in.
pub const RUN: usize = 4;

/// Values of a slot's status.
pub mod status {
    /// Free; the slot contains zeros.
    pub const FREE: u32 = 0;
    /// A child is writing its report.
    pub const CLAIMED: u32 = 1;
    /// The report is finished.
    pub const FINISHED: u32 = 2;
    /// The process has ended, and so takes no more reports.
    pub const CLOSED: u32 = 3;
}

/// Returns the first word of a slot's entry in the header.
pub const fn entry(slot: usize) -> usize {
    16 + slot * 8
}

/// Sizes of a file's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes for each report.
    pub report: usize,
    /// Bytes for each run state.
    pub state: usize,
}

impl Sizes {
    /// Returns the sizes for a process's reports and run state, which have these sizes in bytes.
    pub fn new(report: usize, state: usize) -> Sizes {
        Sizes { report: report.min(MAX_REPORT).next_multiple_of(HEADER), state: state.next_multiple_of(HEADER) }
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> usize {
        (MAX_BYTES / (self.report + self.state).max(1)).min(MAX_SLOTS)
    }

    /// Returns the offset of a slot in the file.
    pub fn offset(&self, slot: usize) -> usize {
        HEADER + slot * (self.report + self.state)
    }
}
