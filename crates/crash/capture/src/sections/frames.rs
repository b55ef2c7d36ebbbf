//! Walks one thread's stack and encodes it on the way: the first frames, the number of skipped
//! frames, the last frames.

use core::num::NonZeroUsize;
use core::ops::ControlFlow;

use coroner_process::memory::LoadGuarded;
use coroner_process::registers::Registers;
use coroner_report::wire::{AddressKind, Encoder, FoundBy, Frame, Thread, ThreadEncoder, WalkEnd};
use coroner_unwind::{Found, Options, RuleCache, SwiftAsync};

use crate::run::BUFFER;
use crate::workspace::Workspace;
use crate::workspace::frame_ring::{FrameRing, LAST_FRAMES};
use crate::workspace::symbol_names::Addresses;
use coroner_walk::{ImageList, LiveReader, StackReader, WalkImages};

/// Limits for keeping and walking a stack's frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Depth {
    /// Number of innermost frames kept.
    pub first: usize,
    /// Number of outermost frames kept, at most [`LAST_FRAMES`].
    pub last: usize,
    /// Maximum number of frames walked.
    pub walked: u32,
    /// Number of stack words scanned if nothing else finds a caller.
    pub scanned: u32,
}

/// Depth for the crashed thread: a stack overflow's hundred thousand frames are walked to their
/// end.
pub(crate) const CRASHED: Depth = Depth { first: 256, last: LAST_FRAMES, walked: 500_000, scanned: 512 };
/// Depth for any other thread.
pub(crate) const OTHER: Depth = Depth { first: 128, last: 32, walked: 20_000, scanned: 512 };

/// The parts of the workspace that a walk uses.
pub(crate) struct Walk<'w> {
    ring: &'w mut FrameRing,
    images: &'w ImageList,
    cache: &'w mut RuleCache,
    names: Option<&'w mut Addresses>,
}

impl<'w> Walk<'w> {
    /// Splits a workspace into the parts that a walk needs and the buffer. Returns `None` without
    /// images.
    pub(crate) fn of(workspace: &'w mut Workspace) -> Option<(Walk<'w>, &'w mut [u8; BUFFER])> {
        let Workspace { buffer, ring, images, cache, names, .. } = workspace;
        let names = names.as_deref_mut().map(|names| &mut names.addresses);
        Some((Walk { ring, images: images.as_ref()?, cache, names }, buffer))
    }

    /// Encodes a thread with its frames, starting at `registers`, and notes the addresses to be
    /// named. Returns `false` if it does not fit.
    pub(crate) fn encode(
        self,
        encoder: &mut Encoder<'_>,
        thread: &Thread<'_>,
        registers: &Registers,
        memory: LoadGuarded,
        depth: Depth,
        swift_async: SwiftAsync,
    ) -> bool {
        let Some(mut thread) = ThreadEncoder::begin(encoder, thread) else { return false };
        let Walk { ring, images, cache, mut names } = self;
        let options = Options { frames: depth.walked, scan_words: depth.scanned, swift_async, ..Options::default() };
        let mut memory = StackReader::with_reader(LiveReader::Loads(memory));
        let mut walker = coroner_walk::walker(registers, &mut memory, WalkImages::Listed(images), cache, options);
        (ring.first_cfa, ring.walked) = (0, 0);
        let mut walked = 0_usize;
        // A type that can't be zero: a division by a number that could be zero would bring a panic
        // onto the crash path.
        let last = NonZeroUsize::new(depth.last.min(LAST_FRAMES)).unwrap_or(NonZeroUsize::MIN);
        walker.for_each(|frame| {
            let frame = wire(frame);
            if walked == 0 {
                ring.first_cfa = frame.cfa.unwrap_or(0);
            }
            if walked < depth.first {
                thread.frame(&frame);
                if let Some(names) = &mut names {
                    names.note(&frame);
                }
            } else if let Some(place) = ring.frames.get_mut((walked - depth.first) % last) {
                *place = frame;
            }
            walked += 1;
            ControlFlow::Continue(())
        });
        ring.walked = walked;
        let end = walker.end().map_or(WalkEnd::NO_RULE, |end| WalkEnd(end.number()));
        let beyond = walked.saturating_sub(depth.first);
        let kept = beyond.min(last.get());
        thread.skip((beyond - kept) as u64);
        for index in beyond - kept..beyond {
            if let Some(frame) = ring.frames.get(index % last) {
                thread.frame(frame);
                if let Some(names) = &mut names {
                    names.note(frame);
                }
            }
        }
        thread.finish(end);
        true
    }
}

/// Converts a frame to the report's form.
pub(crate) fn wire(frame: &coroner_unwind::Frame) -> Frame {
    let address_kind = match (frame.kind, frame.found) {
        (_, Found::SwiftAsync) => AddressKind::ASYNC_RESUME,
        (coroner_unwind::AddressKind::InstructionPointer | coroner_unwind::AddressKind::SignalTrampoline, _) => {
            AddressKind::INSTRUCTION
        }
        (coroner_unwind::AddressKind::ReturnAddress, _) => AddressKind::RETURN,
    };
    Frame { pc: frame.pc, found_by: FoundBy(frame.found as u8), address_kind, sp: Some(frame.sp), cfa: frame.cfa }
}
