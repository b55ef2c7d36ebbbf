//! One thread's stack, walked and encoded as it is walked: the first frames, the number of those in the middle, the last.

use core::num::NonZeroUsize;
use core::ops::ControlFlow;

use coroner_machine::memory::Memory;
use coroner_machine::registers::Registers;
use coroner_report::wire::{AddressKind, FoundBy, Frame, ThreadEncoder, WalkEnd};
use coroner_unwind::{End, Found, Images, Options, RuleCache, SwiftAsync, Walker};

use super::names::Addresses;
use crate::os;
use crate::ranges::RANGES;

/// The architecture that is walked: this process's own.
#[cfg(target_arch = "x86_64")]
pub(crate) type Native = coroner_unwind::X86_64;
/// The architecture that is walked: this process's own.
#[cfg(target_arch = "aarch64")]
pub(crate) type Native = coroner_unwind::Aarch64;

/// The last frames of a deep stack.
pub(crate) const LAST: usize = 128;

/// A ring of the frames that were walked last.
#[derive(Debug)]
pub(crate) struct Ring {
    frames: [Frame; LAST],
}

impl Ring {
    pub(crate) const fn new() -> Self {
        const EMPTY: Frame = Frame { pc: 0, found_by: FoundBy(0), address_kind: AddressKind(0), sp: None, cfa: None };
        Ring { frames: [EMPTY; LAST] }
    }
}

/// How much of a stack is kept and how far it is walked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Depth {
    /// Frames kept from the innermost on.
    pub first: usize,
    /// Frames kept at the outermost end, at most [`LAST`].
    pub last: usize,
    /// Frames that are walked at most.
    pub walked: u32,
    /// Words of stack that are searched where nothing else gives a caller.
    pub scanned: u32,
}

/// The crashed thread: a stack overflow's hundred thousand frames are walked to their end.
pub(crate) const CRASHED: Depth = Depth { first: 256, last: LAST, walked: 500_000, scanned: 512 };
/// Any other thread.
pub(crate) const OTHER: Depth = Depth { first: 128, last: 32, walked: 20_000, scanned: 512 };

/// Walks from `registers` and adds the frames to `thread`, and what is to be named to `names`. Answers why the walk ended.
#[expect(clippy::too_many_arguments, reason = "fields of the scratch, which are borrowed apart from each other")]
pub(crate) fn encode(
    thread: &mut ThreadEncoder<'_, '_>,
    ring: &mut Ring,
    registers: &Registers,
    memory: impl Memory,
    images: impl Images,
    cache: &mut RuleCache,
    names: &mut Addresses,
    depth: Depth,
    swift_async: SwiftAsync,
) -> WalkEnd {
    let options = Options {
        frames: depth.walked,
        authentication_mask: Some(os::process::authentication_mask()),
        scan_words: depth.scanned,
        swift_async,
        ..Options::default()
    };
    let mut walker = Walker::<Native, _, _>::new(registers, memory, RANGES.before(images), cache, options);
    let mut walked = 0_usize;
    // Of a type that can't be zero: a division by a number that could be would bring a panic onto the crash path.
    let last = NonZeroUsize::new(depth.last.min(LAST)).unwrap_or(NonZeroUsize::MIN);
    walker.for_each(|frame| {
        let frame = wire(frame);
        if walked < depth.first {
            thread.frame(&frame);
            names.note(&frame);
        } else if let Some(place) = ring.frames.get_mut((walked - depth.first) % last) {
            *place = frame;
        }
        walked += 1;
        ControlFlow::Continue(())
    });
    let end = walk_end(walker.end());
    let beyond = walked.saturating_sub(depth.first);
    let kept = beyond.min(last.get());
    thread.skip((beyond - kept) as u64);
    for index in beyond - kept..beyond {
        if let Some(frame) = ring.frames.get(index % last) {
            thread.frame(frame);
            names.note(frame);
        }
    }
    end
}

/// A frame as the report has it.
pub(crate) fn wire(frame: &coroner_unwind::Frame) -> Frame {
    let found_by = match frame.found {
        Found::Context => FoundBy::CONTEXT,
        Found::Cfi => FoundBy::CFI,
        Found::CompactUnwind => FoundBy::COMPACT,
        Found::FramePointer => FoundBy::FRAME_POINTER,
        Found::LinkRegister => FoundBy::LINK_REGISTER,
        Found::StackTop => FoundBy::STACK_TOP,
        Found::CodeAnalysis => FoundBy::CODE,
        Found::SignalContext => FoundBy::SIGNAL_FRAME,
        Found::SwiftAsync => FoundBy::ASYNC,
        Found::Registered => FoundBy::REGISTERED,
        Found::Scan => FoundBy::SCAN,
    };
    let address_kind = match (frame.kind, frame.found) {
        (_, Found::SwiftAsync) => AddressKind::ASYNC_RESUME,
        (coroner_unwind::AddressKind::InstructionPointer, _) => AddressKind::INSTRUCTION,
        (coroner_unwind::AddressKind::ReturnAddress, _) => AddressKind::RETURN,
    };
    Frame { pc: frame.pc, found_by, address_kind, sp: Some(frame.sp), cfa: frame.cfa }
}

/// Why a walk ended, as the report has it.
fn walk_end(end: Option<End>) -> WalkEnd {
    match end {
        Some(End::EndOfStack) => WalkEnd::ROOT,
        Some(End::FrameBudget) => WalkEnd::LIMIT,
        Some(End::ReadBudget) => WalkEnd::BUDGET,
        Some(End::NoProgress { .. }) => WalkEnd::NO_PROGRESS,
        Some(End::Unreadable { .. }) => WalkEnd::UNREADABLE,
        Some(End::BadUnwindData { .. }) => WalkEnd::MALFORMED,
        Some(End::BadReturnAddress { .. }) => WalkEnd::OUTSIDE_IMAGES,
        // `NoUnwindData`, and reasons that a later unwinder may know.
        _ => WalkEnd::NO_RULE,
    }
}
