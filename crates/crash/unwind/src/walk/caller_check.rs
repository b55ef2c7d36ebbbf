//! Checks whether the result of a rule is accepted as the caller: its stack pointer must be above,
//! its return address must be code.

use crate::arch::Architecture;
use crate::call_site::is_in_zero_page;
use crate::execute::Caller;
use crate::frame::{AddressKind, End};
use crate::image::{AddressRange, Images};
use crate::rule_cache::{EntryIndex, RuleCache};
use crate::signal_trampoline;
use coroner_process::memory::Memory;

/// Maximum number of times that a walk may go down the stack, which only a signal frame on another
/// stack or an unusual CFA does: a cycle of such frames ends.
const MAX_STACK_SWITCHES: u32 = 64;

/// Accepts a frame that a signal interrupted: a signal handler's stack may be anywhere relative to
/// the interrupted one, and the interrupted address may be any, code or not.
pub(super) fn accept_interrupted(switches: &mut u32, sp: u64, mask: u64, caller: Caller) -> Result<u64, End> {
    if caller.cfa < sp {
        *switches = switches.saturating_add(1);
        if *switches > MAX_STACK_SWITCHES {
            return Err(End::NoProgress { sp: caller.cfa });
        }
    }
    Ok(caller.pc & mask)
}

/// A return address that was accepted, and the place of its rule, if it is cached.
#[derive(Clone, Copy, Debug)]
pub(super) struct Accepted {
    pub pc: u64,
    pub place: Option<EntryIndex>,
}

/// Conditions for accepting a caller.
pub(super) struct CallerCheck<'w, I> {
    pub images: &'w I,
    /// Code that is known without a lookup: the last image's.
    pub code: AddressRange,
    pub cache: &'w RuleCache,
    /// Stack pointer of the frame that is left.
    pub sp: u64,
    pub mask: u64,
    /// Whether the frame may have no stack.
    pub stackless: bool,
    /// Number of times that the stack went down before, for rules that may do so.
    pub switches: Option<&'w mut u32>,
    /// The accepted return address, for whoever continues from there.
    pub accepted: &'w mut Option<Accepted>,
}

impl<I: Images> CallerCheck<'_, I> {
    #[inline]
    pub(super) fn accept<A: Architecture, M: Memory>(mut self, memory: &mut M, caller: Caller) -> Result<u64, End> {
        let pc = caller.pc & self.mask;
        let progress = if self.stackless { caller.cfa >= self.sp } else { caller.cfa > self.sp };
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
            // A signal trampoline may be in a separate page that is in no image.
            && signal_trampoline::recognize::<A, _>(memory, pc).is_none()
        {
            return Err(End::BadReturnAddress { address: pc });
        }
        Ok(pc)
    }

    #[cold]
    fn switch(&mut self, cfa: u64) -> Result<(), End> {
        match &mut self.switches {
            Some(switches) if cfa.is_multiple_of(8) && **switches < MAX_STACK_SWITCHES => {
                **switches = switches.saturating_add(1);
                Ok(())
            }
            _ => Err(End::NoProgress { sp: cfa }),
        }
    }
}
