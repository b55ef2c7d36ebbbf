//! Stack unwinder for crash time: works inside a signal handler, on a broken stack, on another
//! thread, or on a snapshot that was taken elsewhere.
//!
//! `no_std`, no allocation, no locks, no panics; every byte is read through
//! [`coroner_process::memory::Memory`], which returns an error if an address can't be read. Both
//! architectures ([`X86_64`], [`Aarch64`]) and both formats (ELF, Mach-O) are compiled on every
//! host, so that the registers and memory of an iPhone can be walked on Linux.
//!
//! # How a frame is found
//! There are three layers, of which only the last touches the stack:
//! 1. *parse*: the unwind data or the code that covers an address (`cfi`, `compact_unwind`,
//!    `sframe`, `code_analysis`);
//! 2. *rule*: a [`Rule`], 36 bytes of plain data whose meaning is an equation in its documentation;
//! 3. *execute*: the one place (`execute.rs`) that computes the caller's registers from a rule,
//!    registers and stack memory.
//!
//! All callee-saved registers are carried, since the frame that needs `rbx` or `x19` may be two
//! calls further up. They are carried as the *place* where they were saved, and read when needed.
//!
//! # What the caller provides
//! * [`Images`]: which loaded image covers an address and where its unwind sections are. Sections
//!   are read in place, through the same memory as the stack, and found by binary search: the cost
//!   does not grow with the image.
//! * For code that the app generates (a JIT, an interpreter, trampolines): a [`RangeTable`] with
//!   the rule of each range.
//! * A [`RuleCache`], in the caller's storage (for example a `static`): rules are computed once per
//!   address.
//! * [`Options`]: budgets of frames and reads, the pointer authentication mask, whether a stack
//!   scan is allowed.
//!
//! # Requirements for the caller
//! * List all images: code of an image that [`Images`] does not contain has no unwind data.
//! * Every [`Frame`] records how it was found ([`Found`]) and the kind of its address
//!   ([`AddressKind`]): look symbols up only with [`Frame::lookup_address`]. [`Walker::end`]
//!   returns the reason for the walk's end.
//! * Memory must not change while it is walked: the thread is stopped, or is the one that walks.
//! * The first walk of a process takes page faults for code and unwind data that nothing has
//!   touched yet. One walk at launch, of any stack, after [`RuleCache::prepare`], takes most of
//!   them outside a signal handler.
//!
//! # Limits
//! * `.debug_frame` is not loaded with an image, so only walks of snapshots can use it:
//!   [`Image::debug_frame`], which `coroner_symbols::SnapshotImages` fills in.
//! * Outlined functions (arm64) are followed by their code, if they go straight to their return, as
//!   compilers create them from prologues and epilogues. An outlined function and its caller are
//!   two frames; the caller's frame has the stack pointer with which the outlined one returns, and
//!   those registers that it has set so far. The caller's rule holds at only one instruction of the
//!   outlined function, so it is never cached.
//! * A signal handler on arm64 that has no unwind data and doesn't return hides the code that it
//!   interrupted.
//!
//! # Performance
//! Measured by `cargo xtask bench unwind`, all on the same stack of 75 frames in the same run on a
//! quiet virtual machine (x86_64, guarded loads, no frame pointers); only the ratios are meaningful
//! elsewhere. No walk allocates.
//!
//! | | this crate | framehop | libgcc | libunwind |
//! |---|---|---|---|---|
//! | a frame whose rule is cached | 4.7 ns | 55 ns | 110 ns (has no cache) | 6.8 ns (`unw_backtrace`, unguarded) |
//! | a frame whose rule is not cached | 79 ns | 269 ns | 110 ns | 556 ns (`unw_step`) |
//! | the first walk of a process | 24 µs, 3 page faults | 35 µs | 26 µs | 168 µs |
//! | the first walk after a short one at launch | 8.2 µs, no page faults | 32 µs | 14 µs | 117 µs |
//! | a recursion of 100,000 frames | 0.77 ms | 0.81 ms | 9.6 ms | 43 ms |
//! | a cold frame, image of 100 / 1,000,000 functions | 89 / 188 ns | 181 / 369 ns | | |
//!
//! A single walk varies with the machine's other load: on a busy machine the first walk took 40 to
//! 55 µs, libgcc's 41 to 43. Two thirds of a first walk are page faults, and fetching code and
//! unwind data that aren't in any processor cache yet, so a walk at launch is worthwhile:
//! `coroner::install` makes one.
//!
//! # Example
//! Registers and memory that were saved elsewhere, here two frame records of arm64 code without
//! unwind data:
//! ```
//! use coroner_process::memory::{Memory, Unreadable};
//! use coroner_process::registers::Aarch64Registers;
//! use coroner_unwind::{Aarch64, Image, Options, RuleCache, Walker};
//!
//! struct Saved(u64, Vec<u8>);
//! impl Memory for Saved {
//!     fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
//!         let from = address.checked_sub(self.0).ok_or(Unreadable { address })? as usize;
//!         into.copy_from_slice(self.1.get(from..from + into.len()).ok_or(Unreadable { address })?);
//!         Ok(())
//!     }
//! }
//!
//! let words: [u64; 6] = [0x7010, 0x1_0040, 0x7020, 0x1_0080, 0, 0];
//! let stack = Saved(0x7000, words.iter().flat_map(|word| word.to_le_bytes()).collect());
//! let mut registers = Aarch64Registers { pc: 0x1_0004, sp: 0x7000, ..Default::default() };
//! registers.x[29] = 0x7000;
//! let images = [Image { text: (0x1_0000..0x2_0000).into(), ..Image::default() }];
//! let mut cache = RuleCache::new();
//! let mut walker = Walker::<Aarch64, _, _>::new(&registers, stack, &images[..], &mut cache, Options::default());
//! let pcs: Vec<u64> = std::iter::from_fn(|| walker.next_frame()).map(|frame| frame.pc).collect();
//! assert_eq!(pcs, [0x1_0004, 0x1_0040, 0x1_0080]);
//! ```
#![no_std]
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod arch;
mod call_site;
mod cfi;
mod code_analysis;
mod compact_unwind;
mod cursor;
mod execute;
mod frame;
mod frame_pointers;
mod image;
mod lookup;
mod range_table;
mod registers;
mod rule;
mod rule_cache;
mod sframe;
mod signal_trampoline;
mod swift_async;
mod walk;

pub use arch::{Aarch64, Architecture, SLOTS, X86_64};
pub use call_site::follows_call;
pub use cfi::FrameSection;
pub use cfi::eh_frame_hdr::{BuildError, build_search_table};
pub use frame::{AddressKind, End, Found, Frame, Malformed, Problem};
pub use frame_pointers::FramePointers;
pub use image::{AddressRange, Image, ImageFormat, Images, Registered};
pub use range_table::{RangeTable, RegisterError, Registration, WithRanges};
pub use registers::RegisterFile;
pub use rule::{Program, Row, Rule, SignalContext};
pub use rule_cache::RuleCache;
pub use swift_async::SwiftAsync;
pub use walk::{Options, Walker};

/// Marks the calling branch as unlikely: replaces `core::hint::cold_path`, which requires Rust
/// 1.95, and results in the same code.
#[cold]
#[inline]
const fn cold_path() {}
