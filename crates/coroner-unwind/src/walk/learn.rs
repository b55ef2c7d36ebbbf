//! The usual rule of the usual caller, found while a run of steps is under way ([`super::known`]): a call in code that has unwind
//! data, which say with a plain row where the caller's caller is.
//!
//! It is a short way to what [`super::rules`] finds in the same cases, and knows nothing of others: the walk then goes on by any
//! means. A first walk fetches every line of code that it runs, and most of its frames need no line but these.

use super::Metered;
use crate::arch::Architecture;
use crate::cache::{FoundRule, Place, RuleCache};
use crate::cfi::FrameSection;
use crate::frame::{AddressKind, Found};
use crate::image::{Image, ImageFormat, Images};
use crate::lookup;
use crate::plain;
use crate::rule::{Row, Rule};
use crate::trampoline;
use core::marker::PhantomData;
use coroner_machine::memory::Memory;
use coroner_machine::registers::Arch;

/// What a search of a table reads at most: a row for each bit of their number, and one more.
const SEARCH: u64 = 65;

/// The frame of which the rule is wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unknown {
    pub pc: u64,
    pub kind: AddressKind,
    pub sp: u64,
    /// Its frame pointer, if it is known without reading more.
    pub fp: Option<u64>,
}

/// What tells where code is.
pub(super) struct Learner<'w, A, I> {
    images: &'w I,
    /// The image that was found last.
    image: &'w mut Image,
    arch: PhantomData<A>,
}

impl<'w, A: Architecture, I: Images> Learner<'w, A, I> {
    #[inline]
    pub(super) fn new(images: &'w I, image: &'w mut Image) -> Self {
        Learner { images, image, arch: PhantomData }
    }

    /// Keeps the rule of a frame in the cache and says where; `None` where it is not of the usual kind, or would take the place
    /// of another one, which a walk may still need: that it does not take a rule away is what makes it right in the midst of a
    /// run.
    #[inline(never)]
    pub(super) fn learn<M: Memory>(
        &mut self,
        cache: &mut RuleCache,
        memory: &mut Metered<M>,
        frame: Unknown,
    ) -> Option<Place> {
        let Unknown { pc, kind, .. } = frame;
        let call = match kind {
            AddressKind::ReturnAddress => pc.checked_sub(1)?,
            AddressKind::InstructionPointer => pc,
        };
        if !cache.has_room() || self.images.registered(call).is_some() {
            return None;
        }
        if !self.image.text.contains(call) {
            *self.image = self.images.find(call)?;
        }
        let mut rule = FoundRule { rule: Rule::Row(Row::new(0, 0)), found: Found::Cfi, signal_trampoline: false };
        let range = match self.image.format {
            ImageFormat::Elf => {
                memory.left = memory.left.checked_sub(SEARCH)?;
                let table = cache.heads.tables.get(&mut memory.memory, self.image.eh_frame_hdr).ok()??;
                let at = table.find(&mut memory.memory, call).ok()??;
                let Rule::Row(row) = &mut rule.rule else { return None };
                let section = FrameSection::eh_frame(self.image);
                let plain = plain::row_at::<A, _>(memory, &mut cache.heads.common, &section, at, call, row)?;
                if !plain.covers || plain.outermost || plain.signal_trampoline {
                    return None;
                }
                plain.range
            }
            ImageFormat::MachO => {
                if self.image.stubs.contains(call) {
                    return None;
                }
                let heads = &mut cache.heads;
                let stated = lookup::mach_rule::<A, _>(memory, heads, self.image, call, &mut rule.rule).ok()??;
                if stated.signal_trampoline {
                    return None;
                }
                if stated.compact {
                    rule.found = Found::CompactUnwind;
                }
                stated.range
            }
        };
        let Rule::Row(row) = &rule.rule else { return None };
        let is_usual = match kind {
            AddressKind::ReturnAddress => range.contains(pc) && !self.may_be_signal_frame(memory, row, frame),
            AddressKind::InstructionPointer => self.holds_everywhere() && !is_trampoline::<A, M>(memory, pc),
        };
        is_usual.then(|| cache.put::<A>(pc, kind, &rule))
    }

    /// Whether what unwind data state holds at every instruction, and not only at calls.
    #[inline]
    fn holds_everywhere(&self) -> bool {
        self.image.format == ImageFormat::Elf && A::ARCH == Arch::X86_64
    }

    /// Whether the kernel may have made the frame, for a signal handler to return to: on Darwin that is known by what it wrote.
    #[inline]
    fn may_be_signal_frame<M: Memory>(&self, memory: &mut Metered<M>, row: &Row, frame: Unknown) -> bool {
        if self.image.format != ImageFormat::MachO || A::ARCH != Arch::Aarch64 {
            return false;
        }
        let base = match row.cfa_register {
            number if number == A::SP => Some(frame.sp),
            number if number == A::FP => frame.fp,
            _ => None,
        };
        base.is_none_or(|base| trampoline::is_darwin_frame(memory, base.wrapping_add_signed(row.cfa_offset.into())))
    }
}

#[inline]
fn is_trampoline<A: Architecture, M: Memory>(memory: &mut Metered<M>, pc: u64) -> bool {
    trampoline::recognise::<A, _>(memory, pc).is_some()
}
