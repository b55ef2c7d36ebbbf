//! Fast path for a rule that isn't cached, without leaving the loop of [`super::cached_frames`]:
//! for code whose unwind data contain a plain row.
//!
//! The result is the same as that of [`super::find_rule`] in these cases, and `None` in all others.
//! This module is small because the first walk of a process has to fetch every line of code that it
//! runs.

use super::BudgetedMemory;
use crate::arch::Architecture;
use crate::call_site::is_in_zero_page;
use crate::cfi::FrameSection;
use crate::cfi::fast_path;
use crate::frame::{AddressKind, Found};
use crate::image::{Image, ImageFormat, Images};
use crate::lookup;
use crate::rule::{Row, Rule};
use crate::rule_cache::{EntryIndex, FoundRule, RuleCache};
use crate::signal_trampoline;
use core::marker::PhantomData;
use coroner_process::memory::Memory;
use coroner_process::registers::Arch;

/// Maximum number of reads of a table search: a row for each bit of the row count, and one more.
const MAX_SEARCH_READS: u64 = 65;

/// The frame whose rule is needed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Uncached {
    pub pc: u64,
    pub kind: AddressKind,
    pub sp: u64,
    /// The frame pointer, if it is known without further reads.
    pub fp: Option<u64>,
}

/// Sources for finding rules: the images, and the image found last.
pub(super) struct CacheFiller<'w, A, I> {
    images: &'w I,
    /// The image that was found last.
    image: &'w mut Image,
    arch: PhantomData<A>,
}

impl<'w, A: Architecture, I: Images> CacheFiller<'w, A, I> {
    #[inline]
    pub(super) fn new(images: &'w I, image: &'w mut Image) -> Self {
        CacheFiller { images, image, arch: PhantomData }
    }

    /// Stores a frame's rule in the cache and returns its place. Returns `None` if the rule is not
    /// of the usual kind, or would replace another one, which a walk may still need: because it
    /// never removes a rule, it may be called in the middle of a run.
    #[inline(never)]
    pub(super) fn fill<M: Memory>(
        &mut self,
        cache: &mut RuleCache,
        memory: &mut BudgetedMemory<M>,
        frame: Uncached,
    ) -> Option<EntryIndex> {
        let Uncached { pc, kind, .. } = frame;
        let call = match kind {
            AddressKind::ReturnAddress => pc.checked_sub(1)?,
            _ => pc,
        };
        if !cache.has_room() || is_in_zero_page(call) || self.images.registered(call).is_some() {
            return None;
        }
        if !self.image.text.contains(call) {
            *self.image = self.images.find(call)?;
        }
        let mut rule = FoundRule { rule: Rule::Row(Row::new(0, 0)), found: Found::Cfi, signal_trampoline: false };
        let range = match self.image.format_in::<I>() {
            ImageFormat::Elf => {
                memory.left = memory.left.checked_sub(MAX_SEARCH_READS)?;
                let table = cache.sections.tables.get(&mut memory.memory, self.image.eh_frame_hdr).ok()??;
                let at = table.find(&mut memory.memory, call).ok()??;
                let Rule::Row(row) = &mut rule.rule else { return None };
                let section = FrameSection::eh_frame(self.image);
                let plain = fast_path::row_at::<A, _>(memory, &mut cache.sections.cie, &section, at, call, row)?;
                if !plain.covers || plain.outermost || plain.signal_trampoline {
                    return None;
                }
                plain.range
            }
            ImageFormat::MachO => {
                if self.image.stubs.contains(call) {
                    return None;
                }
                let sections = &mut cache.sections;
                let stated = lookup::mach_rule::<A, _>(memory, sections, self.image, call, &mut rule.rule).ok()??;
                if stated.signal_trampoline {
                    return None;
                }
                rule.found = stated.found;
                stated.range
            }
        };
        let Rule::Row(row) = &rule.rule else { return None };
        let is_usual = match kind {
            AddressKind::ReturnAddress => range.contains(pc) && !self.may_be_signal_frame(memory, row, frame),
            _ => self.holds_everywhere() && !is_trampoline::<A, M>(memory, pc),
        };
        is_usual.then(|| cache.put::<A>(pc, kind, &rule))
    }

    /// Whether the unwind data hold at every instruction, and not only at calls.
    #[inline]
    fn holds_everywhere(&self) -> bool {
        self.image.format_in::<I>() == ImageFormat::Elf && A::ARCH == Arch::X86_64
    }

    /// Whether the kernel may have created the frame for a signal handler to return to: on Darwin
    /// this is recognized by the frame's content.
    #[inline]
    fn may_be_signal_frame<M: Memory>(&self, memory: &mut BudgetedMemory<M>, row: &Row, frame: Uncached) -> bool {
        if self.image.format_in::<I>() != ImageFormat::MachO || A::ARCH != Arch::Aarch64 {
            return false;
        }
        let base = match row.cfa_register {
            number if number == A::SP => Some(frame.sp),
            number if number == A::FP => frame.fp,
            _ => None,
        };
        base.is_none_or(|base| {
            signal_trampoline::is_darwin_frame(memory, base.wrapping_add_signed(row.cfa_offset.into()))
        })
    }
}

#[inline]
fn is_trampoline<A: Architecture, M: Memory>(memory: &mut BudgetedMemory<M>, pc: u64) -> bool {
    signal_trampoline::recognize::<A, _>(memory, pc).is_some()
}
