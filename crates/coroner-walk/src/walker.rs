//! The unwinder's walker for a stack of this process.

use coroner_process::memory::Memory;
use coroner_process::registers::Registers;
use coroner_unwind::{Images, Options, RuleCache, Walker, WithRanges};

use crate::registered_ranges::{MAX_RANGES, RANGES};

/// The architecture that is walked: this process's own.
#[cfg(target_arch = "x86_64")]
pub type Native = coroner_unwind::X86_64;
/// The architecture that is walked: this process's own.
#[cfg(target_arch = "aarch64")]
pub type Native = coroner_unwind::Aarch64;

/// The bits of a code address that are no address: a walk removes them from return addresses.
#[inline]
pub fn authentication_mask() -> u64 {
    #[cfg(target_vendor = "apple")]
    return coroner_process::pointers::authentication_mask();
    #[cfg(not(target_vendor = "apple"))]
    <Native as coroner_unwind::Architecture>::AUTHENTICATION_MASK
}

/// A walk of a thread of this process, from these registers. Registered ranges come before what `images` know; the authentication
/// mask is this process's, whatever `options` say. Async-signal-safe if `memory` and `images` are.
#[inline]
pub fn walker<'c, M: Memory, I: Images>(
    registers: &Registers,
    memory: M,
    images: I,
    rules: &'c mut RuleCache,
    options: Options,
) -> Walker<'c, Native, M, WithRanges<'static, I, MAX_RANGES>> {
    let options = Options { authentication_mask: Some(authentication_mask()), ..options };
    Walker::new(registers, memory, RANGES.before(images), rules, options)
}
