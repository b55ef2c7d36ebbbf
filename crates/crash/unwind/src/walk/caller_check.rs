//! Whether the result of a rule is accepted as the caller: its stack pointer must be above, its return address must be code.

use crate::arch::Architecture;
use crate::call_site::is_in_zero_page;
use crate::execute::Caller;
use crate::frame::{AddressKind, End};
use crate::image::{AddressRange, Images};
use crate::rule_cache::{EntryIndex, RuleCache};
use crate::signal_trampoline;
use coroner_process::memory::Memory;

/// How often a walk may go down the stack, which only a signal frame on another stack or an odd CFA
/// does: a circle of such frames ends.
const STACK_SWITCHES: u32 = 64;

/// A signal handler's stack may be anywhere relative to the interrupted one, and what was interrupted may be any address,
/// code or not.
pub(super) fn accept_interrupted(switches: &mut u32, sp: u64, mask: u64, caller: Caller) -> Result<u64, End> {
    if caller.cfa < sp {
        *switches = switches.saturating_add(1);
        if *switches > STACK_SWITCHES {
            return Err(End::NoProgress { sp: caller.cfa });
        }
    }
    Ok(caller.pc & mask)
}

/// A return address that was accepted, and where its rule is, if the cache has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Accepted {
    pub pc: u64,
    pub place: Option<EntryIndex>,
}

/// What a caller must be like to be accepted.
pub(super) struct CallerCheck<'w, I> {
    pub images: &'w I,
    /// Code that is known without asking for it: the last image's.
    pub code: AddressRange,
    pub cache: &'w RuleCache,
    /// The stack pointer of the frame that is left.
    pub sp: u64,
    pub mask: u64,
    /// Whether the frame may be a leaf that keeps its return address in a register and has no stack of its own.
    pub leaf: bool,
    /// How often the stack went down before, for rules that may say so.
    pub switches: Option<&'w mut u32>,
    /// What was accepted, for who goes on from there.
    pub accepted: &'w mut Option<Accepted>,
}

impl<I: Images> CallerCheck<'_, I> {
    #[inline]
    pub(super) fn accept<A: Architecture, M: Memory>(mut self, memory: &mut M, caller: Caller) -> Result<u64, End> {
        let pc = caller.pc & self.mask;
        let progress = if self.leaf { caller.cfa >= self.sp } else { caller.cfa > self.sp };
        if !progress || !caller.cfa.is_multiple_of(8) {
            self.switch(caller.cfa)?;
        }
        let place = self.cache.find(pc, AddressKind::ReturnAddress);
        *self.accepted = Some(Accepted { pc, place });
        if place.is_some() {
            return Ok(pc);
        }
        if pc == 0 {
            return Err(End::EndOfStack);
        }
        if is_in_zero_page(pc) {
            return Err(End::BadReturnAddress { address: pc });
        }
        let call = pc.wrapping_sub(1);
        if !self.code.contains(call)
            && self.images.is_executable(call) == Some(false)
            // A signal trampoline may be in a page of its own, that is in no image.
            && signal_trampoline::recognise::<A, _>(memory, pc).is_none()
        {
            return Err(End::BadReturnAddress { address: pc });
        }
        Ok(pc)
    }

    #[cold]
    fn switch(&mut self, cfa: u64) -> Result<(), End> {
        match &mut self.switches {
            Some(switches) if cfa.is_multiple_of(8) && **switches < STACK_SWITCHES => {
                **switches = switches.saturating_add(1);
                Ok(())
            }
            _ => Err(End::NoProgress { sp: cfa }),
        }
    }
}
