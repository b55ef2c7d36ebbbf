//! The first and the last frames of a stack of any depth.

use crate::arch::Architecture;
use crate::frame::{End, Frame};
use crate::image::Images;
use crate::walk::Walker;
use core::ops::ControlFlow;
use coroner_process::memory::Memory;

/// Keeps the first frames of a walk, where it crashed, and the last ones, where the thread came from, and counts those
/// between: an endless recursion has 100,000 of them.
#[derive(Debug)]
pub struct Recorder<'f> {
    first: &'f mut [Frame],
    last: &'f mut [Frame],
    total: u64,
}

impl<'f> Recorder<'f> {
    /// Keeps as many first and last frames as there is room in the slices; what is in them does not matter.
    pub fn new(first: &'f mut [Frame], last: &'f mut [Frame]) -> Recorder<'f> {
        Recorder { first, last, total: 0 }
    }

    /// Takes the next frame.
    #[inline]
    pub fn push(&mut self, frame: Frame) {
        let index = self.total;
        self.total = self.total.saturating_add(1);
        let kept_first = self.first.len() as u64;
        if index < kept_first {
            if let Some(place) = self.first.get_mut(index as usize) {
                *place = frame;
            }
            return;
        }
        let place = index.wrapping_sub(kept_first).checked_rem(self.last.len() as u64);
        if let Some(place) = place.and_then(|place| self.last.get_mut(place as usize)) {
            *place = frame;
        }
    }

    /// The number of frames that were pushed.
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// The first frames.
    pub fn first(&self) -> &[Frame] {
        let count = self.total.min(self.first.len() as u64) as usize;
        self.first.get(..count).unwrap_or_default()
    }

    /// The number of frames between the first and the last ones, which were not kept.
    pub const fn skipped(&self) -> u64 {
        self.total.saturating_sub(self.first.len() as u64).saturating_sub(self.last.len() as u64)
    }

    /// The last frames, in order, without those that are among the first.
    pub fn last(&self) -> impl Iterator<Item = &Frame> {
        let behind_first = self.total.saturating_sub(self.first.len() as u64);
        let room = self.last.len() as u64;
        // Where the ring has gone round, the oldest is where the next one would go.
        let split = if behind_first > room { behind_first.checked_rem(room).unwrap_or(0) } else { 0 };
        let count = behind_first.min(room) as usize;
        let (newer, older) = self.last.split_at_checked(split as usize).unwrap_or_default();
        older.iter().chain(newer).take(count)
    }
}

impl<A: Architecture, M: Memory, I: Images> Walker<'_, A, M, I> {
    /// Walks to the end, and says why it ended.
    pub fn record(&mut self, recorder: &mut Recorder<'_>) -> End {
        self.for_each(|frame| {
            recorder.push(*frame);
            ControlFlow::Continue(())
        });
        self.end().unwrap_or(End::EndOfStack)
    }
}
