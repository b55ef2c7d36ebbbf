//! The unwinder's walker for a stack of this process.

use core::cell::Cell;

use coroner_process::registers::Registers;
use coroner_unwind::{Image, Images, Options, RuleCache, Walker, WithRanges};

use crate::registered_ranges::{MAX_RANGES, RANGES};
use crate::{ImageList, LiveImages, StackReader};

/// The architecture that is walked: this process's own.
#[cfg(target_arch = "x86_64")]
pub type Native = coroner_unwind::X86_64;
/// The architecture that is walked: this process's own.
#[cfg(target_arch = "aarch64")]
pub type Native = coroner_unwind::Aarch64;

/// Returns the bits of a code address that don't belong to the address: a walk removes them from
/// return addresses.
#[inline]
pub fn authentication_mask() -> u64 {
    #[cfg(target_vendor = "apple")]
    return coroner_process::pointers::authentication_mask();
    #[cfg(not(target_vendor = "apple"))]
    <Native as coroner_unwind::Architecture>::AUTHENTICATION_MASK
}

/// The images of a walk. One type for all walks, like the memory: the unwinder is large, and is
/// compiled once.
#[derive(Clone, Copy, Debug)]
pub enum WalkImages<'i> {
    /// The images in a table of its owner, for a crash.
    Listed(&'i ImageList),
    /// The images that all threads share.
    Live(&'i LiveImages),
    /// Same as `Live`, also recording whether an address was in none of them.
    Noting(&'i LiveImages, &'i Cell<bool>),
}

impl Images for WalkImages<'_> {
    const MACH_O: bool = cfg!(target_vendor = "apple");

    fn find(&self, address: u64) -> Option<Image> {
        match self {
            WalkImages::Listed(images) => Images::find(images, address),
            WalkImages::Live(images) => Images::find(images, address),
            WalkImages::Noting(images, missed) => {
                let found = Images::find(images, address);
                missed.set(missed.get() || found.is_none());
                found
            }
        }
    }

    fn is_executable(&self, address: u64) -> Option<bool> {
        match self {
            WalkImages::Listed(images) => images.is_executable(address),
            WalkImages::Live(images) | WalkImages::Noting(images, _) => images.is_executable(address),
        }
    }

    #[inline]
    fn generation(&self) -> u64 {
        match self {
            WalkImages::Listed(images) => Images::generation(images),
            WalkImages::Live(images) | WalkImages::Noting(images, _) => Images::generation(images),
        }
    }
}

/// Walker of this process's stacks.
pub type NativeWalker<'c, 'm, 'w, 'i> =
    Walker<'c, Native, &'m mut StackReader<'w>, WithRanges<'static, WalkImages<'i>, MAX_RANGES>>;

/// Creates a walk of a thread of this process, from these registers. Registered ranges have
/// priority over `images`; the authentication mask is this process's, regardless of `options`.
/// Async-signal-safe if `memory` is.
#[inline]
pub fn walker<'c, 'm, 'w, 'i>(
    registers: &Registers,
    memory: &'m mut StackReader<'w>,
    images: WalkImages<'i>,
    rules: &'c mut RuleCache,
    options: Options,
) -> NativeWalker<'c, 'm, 'w, 'i> {
    let options = Options { authentication_mask: Some(authentication_mask()), ..options };
    Walker::new(registers, memory, RANGES.before(images), rules, options)
}
