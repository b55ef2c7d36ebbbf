//! Memory that the crashed thread's registers point to, written as further pieces of its stack
//! memory section.

use coroner_process::memory::{Memory as _, PresentPages};
use coroner_report::wire::{Encoder, SectionKind, StackMemory};

use super::SectionResult;
use crate::recrash::RECRASH;
use crate::run::ReportWriter;
use crate::session::{CrashSession, memory};

/// Size of a block in bytes: memory is kept in whole blocks, at multiples of their size, so that
/// each is in one page and none is kept twice.
const BLOCK: u64 = 256;
/// Minimum number of bytes kept from a register's address on.
const LEAST: u64 = 128;
/// Nothing is mapped below this address.
const NEAR_NULL: u64 = 0x1_0000;
/// Mask for the bits of an address: it removes arm64's tag byte, and keeps all bits on x86_64.
const ADDRESS: u64 = if cfg!(target_arch = "aarch64") { !(0xff << 56) } else { u64::MAX };

/// Writes the blocks that contain the general registers' values, plus the next one if a value is
/// near the end of its block. Skips pages that are not in memory: a file or a server of page faults
/// may never answer.
pub(crate) fn write(session: &mut CrashSession<'_>) -> SectionResult {
    let (context, options) = (session.context, &session.installed.options);
    if context.hung.is_some() || (options.stack_memory == 0 && !options.stack_memory_all) {
        return SectionResult::Empty;
    }
    let registers = context.registers.general();
    let blocks = |value: u64| [value, value.wrapping_add(LEAST)].map(|address| address & ADDRESS & !(BLOCK - 1));
    let stack = session.stack_kept.clone();
    let pages = PresentPages::open(session.installed.run.page_size);
    let mut encoder = ReportWriter::payload(&mut session.workspace.buffer);
    encoder.begin_array();
    for (number, value) in registers.iter().enumerate() {
        let earlier = registers.get(..number).unwrap_or_default();
        let [first, second] = blocks(*value);
        for (block, is_repeated) in [(first, false), (second, second == first)] {
            let is_kept = block < stack.end && block.wrapping_add(BLOCK) > stack.start;
            let is_repeated = is_repeated || earlier.iter().any(|value| blocks(*value).contains(&block));
            if block < NEAR_NULL || is_kept || is_repeated || RECRASH.is_expired() {
                continue;
            }
            encode(&mut encoder, context.tid as u64, block, &pages);
        }
    }
    encoder.end();
    let length = encoder.position();
    session.seal(SectionKind::STACK_MEMORY, length)
}

fn encode(encoder: &mut Encoder<'_>, tid: u64, address: u64, pages: &PresentPages) {
    let mut bytes = [0; BLOCK as usize];
    if pages.contains(address) && memory().read(address, &mut bytes).is_ok() {
        StackMemory { tid, address, bytes: &bytes }.encode(encoder);
    }
}
