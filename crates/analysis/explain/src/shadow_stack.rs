//! Compares the hardware's shadow stack with the stack walk.
//!
//! A return address that differs from the one pushed by the call was overwritten.
//!
//! Sources: Intel's manual, volume 1, chapter 17; Arm's manual, D11 (GCS); Linux's
//! arch/x86/kernel/shstk.c, arch/arm64/kernel/signal.c and Documentation/arch/arm64/gcs.rst.

use coroner_process::registers::Arch;
use coroner_report::Report;
use coroner_report::model::{Address, OverwrittenReturn, Thread};
use coroner_report::wire::{AddressKind, ExtraRegister, FoundBy, WalkEnd};

use crate::architecture;
use crate::instruction::State;
use crate::memory_map::{MAY_EXECUTE, permissions_at};

/// Maximum number of words read from a shadow stack; a report contains no more.
const MAX_WORDS: u64 = 288;

/// A word in a shadow stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    /// The return address of a call, or of a handler, which is the signal trampoline's.
    Return(u64),
    /// A kernel entry for a signal.
    Signal,
    /// A token where a stack continues after a switch away from it.
    ///
    /// Entries above the token belong to an older switch.
    Restore,
}

/// Classifies the word at an address. `None` for other values: arm64's end of a stack, a token in
/// use.
fn entry(arch: Arch, at: u64, word: u64) -> Option<Entry> {
    const PAGE: u64 = !0xfff;
    let next = at.wrapping_add(8);
    Some(match arch {
        Arch::X86_64 if word == next | 1 << 63 => Entry::Signal,
        // `create_rstor_token`, and what RSTORSSP leaves for SAVEPREVSSP.
        Arch::X86_64 if word == next | 1 || word & 7 == 3 && word.abs_diff(at) < 1 << 32 => Entry::Restore,
        // `GCS_SIGNAL_CAP`: a valid cap without its type.
        Arch::Aarch64 if word == at & PAGE => Entry::Signal,
        Arch::Aarch64 if word & PAGE == at & PAGE && matches!(word & 7, 1 | 5) => Entry::Restore,
        _ if word == 0 || word >> 63 != 0 => return None,
        _ => Entry::Return(word),
    })
}

/// Returns the shadow stack's entries from its pointer on, innermost first.
fn entries(arch: Arch, state: &State<'_>) -> Vec<Entry> {
    let pointer = state.registers.extra.iter().find(|(register, _)| *register == ExtraRegister::SHADOW_STACK);
    let Some(pointer) = pointer.map(|(_, pointer)| *pointer).filter(|pointer| pointer.is_multiple_of(8)) else {
        return Vec::new();
    };
    let words = (0..MAX_WORDS).map_while(|number| {
        let at = pointer.checked_add(number * 8)?;
        entry(arch, at, state.saved(at, 8)?)
    });
    words.take_while(|entry| *entry != Entry::Restore).collect()
}

/// Returns the overwritten return address, if the shadow stack proves it.
///
/// `failed`: the processor stopped the thread because a return did not match the shadow stack.
pub(crate) fn compare(
    report: &Report,
    thread: &Thread,
    arch: Arch,
    state: &State<'_>,
    failed: bool,
) -> Option<OverwrittenReturn> {
    let mask = architecture::address_mask(arch);
    let is_same = |a: u64, b: u64| (a ^ b) & mask == 0;
    let shadow = entries(arch, state);
    let is_code = |address: u64| {
        permissions_at(report, Address(address)).is_some_and(|permissions| permissions & MAY_EXECUTE != 0)
    };
    let overwritten = |frame: usize, leads_to: u64, was: u64| {
        (is_code(was) && !is_same(leads_to, was)).then_some(OverwrittenReturn {
            frame,
            leads_to: Address(leads_to),
            was: Address(was),
        })
    };
    if failed {
        // The thread stopped at the return, which has not popped anything yet.
        let leads_to = match arch {
            Arch::X86_64 => state.saved(state.stack_pointer()?, 8)?,
            Arch::Aarch64 => state.register("lr")?.1,
        };
        return match shadow.first()? {
            Entry::Return(was) => overwritten(0, leads_to, *was),
            _ => None,
        };
    }
    let before_skipped = thread.skipped.first().map_or(thread.frames.len(), |skipped| skipped.after);
    let is_known = |frame: &&coroner_report::model::Frame| {
        frame.found_by != FoundBy::SCAN && frame.address_kind != AddressKind::ASYNC_RESUME
    };
    let walked: Vec<_> = thread.frames.iter().take(before_skipped).take_while(is_known).collect();
    let callers = walked.get(1..)?;
    let agrees = |number: usize| match (callers.get(number), shadow.get(number)) {
        (Some(frame), Some(Entry::Return(address))) => is_same(frame.address.0, *address),
        (Some(frame), Some(Entry::Signal)) => frame.address_kind == AddressKind::INSTRUCTION,
        _ => false,
    };
    let first = (0..callers.len().max(shadow.len())).find(|number| !agrees(*number))?;
    let Entry::Return(was) = *shadow.get(first)? else { return None };
    let is_walked_later = callers.get(first..)?.iter().any(|frame| is_same(frame.address.0, was));
    let is_on_shadow = |address: u64| {
        shadow.iter().skip(first).any(|entry| matches!(entry, Entry::Return(other) if is_same(*other, address)))
    };
    // On x86_64 the return address's location is certain if the frame's end is.
    let slot = walked.get(first).and_then(|frame| frame.cfa?.0.checked_sub(8)).filter(|_| arch == Arch::X86_64);
    let stored = slot.and_then(|slot| state.saved(slot, 8));
    let leads_to = match callers.get(first) {
        // The frames after this one match again, so only this address differs.
        Some(frame)
            if frame.address_kind == AddressKind::RETURN
                && agrees(first + 1)
                && stored.is_none_or(|stored| stored == frame.address.0) =>
        {
            frame.address.0
        }
        // The walk ended here, because the address that it found is not code.
        None if walked.len() == thread.frames.len() && thread.walk_end == Some(WalkEnd::OUTSIDE_IMAGES) => {
            stored.filter(|address| !is_code(*address))?
        }
        _ => return None,
    };
    // Frames skipped by a longjmp remain on one of the two stacks: the stacks then differ, although
    // nothing was overwritten.
    if is_walked_later || is_on_shadow(leads_to) {
        return None;
    }
    overwritten(first, leads_to, was)
}

/// Describes an overwritten return address in a sentence.
pub(crate) fn describe(report: &Report, overwritten: &OverwrittenReturn) -> String {
    let OverwrittenReturn { frame, leads_to, was } = overwritten;
    let whose = if *frame == 0 { String::new() } else { format!(" of frame {frame}") };
    let was = locate(report, *was);
    format!("the shadow stack shows that the return address{whose} was overwritten: it is {leads_to}, and was {was}")
}

/// Returns, for example, `0x401234 (paint + 0x1234)`.
pub(crate) fn locate(report: &Report, address: Address) -> String {
    report.image_at(address).map_or_else(
        || address.to_string(),
        |image| format!("{address} ({} + {:#x})", image.name(), address.0.wrapping_sub(image.load_address.0)),
    )
}
