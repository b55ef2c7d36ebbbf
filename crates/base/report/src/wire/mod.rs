//! The crash path's output: an encoder into a fixed buffer, frames, and each section's records.
//!
//! This code runs inside a signal handler of a broken process: nothing allocates, nothing can panic
//! in an optimised build, nothing formats. An element that doesn't fit in the buffer is dropped
//! whole and counted, never half written.
//!
//! A section is written in place, its frame header last, so that a reader sees a section whole or
//! not at all:
//!
//! ```
//! use coroner_report::wire::{self, Encoder, SectionKind};
//!
//! let mut file = [0; 256];
//! // Leave FRAME_HEADER_LEN bytes for the header, which is sealed in front of the payload when its length is known.
//! let mut encoder = Encoder::new(&mut file[wire::FRAME_HEADER_LEN..]);
//! encoder.begin_array();
//! wire::SymbolName { address: 0x1234, name: b"main", symbol_address: Some(0x1200) }.encode(&mut encoder);
//! encoder.end();
//! let payload_len = encoder.position();
//! let section_len = wire::seal(&mut file, SectionKind::SYMBOL_NAMES, payload_len).unwrap();
//! assert_eq!(section_len, wire::FRAME_HEADER_LEN + payload_len);
//! ```

mod crash;
mod crc32c;
mod encoder;
mod frame;
mod image;
pub mod keys;
mod numbers;
mod outcome;
mod profile;
mod thread;

pub use crash::{ConcurrentCrash, Crash, CrashFlags, Exception, Hang, Header, Mach, Signal};
pub use crc32c::crc32c;
pub use encoder::{Encoder, Mark};
pub use frame::{
    FILE_PREFIX, FORMAT_VERSION, FRAME_HEADER_LEN, FRAME_MAGIC, FrameHeader, HeaderError, MAX_PAYLOAD, checksum,
    parse_header, seal, seal_header,
};
pub use image::{Image, ReplacedImage, Segment, SymbolName, UnwindSection};
pub use numbers::{
    Access, AddressKind, CaptureMethod, ExtraRegister, FoundBy, ImageKind, Language, Monitor, NotCaptured, Os, Phase,
    SectionKind, ThreadState, UnwindKind, WalkEnd,
};
pub use outcome::{Annotation, AppMemory, Code, Dropped, End, Fault, Mapping, PhaseDuration, StackMemory, Zombie};
pub use profile::{Profile, ProfileEnd, ProfileNode};
pub use thread::{Frame, Registers, Thread, ThreadEncoder, ThreadFlags};
