//! A rule that the cache lacks, found without leaving the loop of [`super::cached_frames`]: that of code whose unwind data state a plain
//! row.
//!
//! It gives what [`super::find_rule`] gives in the same cases, and `None` in all others. It is small because the first walk of a process
//! has to fetch every line of code that it runs.

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

/// What a search of a table reads at most: a row for each bit of their number, and one more.
const SEARCH: u64 = 65;

/// The frame of which the rule is wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Uncached {
    pub pc: u64,
    pub kind: AddressKind,
    pub sp: u64,
    /// Its frame pointer, if it is known without reading more.
    pub fp: Option<u64>,
}

/// What says where code is.
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

    /// Keeps the rule of a frame in the cache and says where; `None` if it is not of the usual kind, or would take the place
    /// of another one, which a walk may still need: that it does not take a rule away is what makes it right in the midst of a
    /// run.
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
                memory.left = memory.left.checked_sub(SEARCH)?;
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

    /// Whether what unwind data state holds at every instruction, and not only at calls.
    #[inline]
    fn holds_everywhere(&self) -> bool {
        self.image.format_in::<I>() == ImageFormat::Elf && A::ARCH == Arch::X86_64
    }

    /// Whether the kernel may have made the frame, for a signal handler to return to: on Darwin that is known by what it wrote.
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
    signal_trampoline::recognise::<A, _>(memory, pc).is_some()
}
