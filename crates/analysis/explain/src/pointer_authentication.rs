//! Detects arm64 pointers that failed authentication.
//!
//! The processor puts an error code into such a pointer, so that its first use faults (Arm's
//! reference manual, `Auth` in the shared pseudocode): 01 for key A, 10 for key B, in bits 54 and
//! 53 if the top byte is ignored, otherwise in bits 62 and 61. The former applies to Linux and to
//! data on Darwin, the latter to code on Darwin. Processors with FEAT_FPAC fault at the
//! authentication itself, without an error code.
//!
//! A flipped bit in memory can produce the same value. The two cases can't be distinguished, and
//! the rarer one ([`crate::bit_flip`]) is not reported.

use coroner_process::registers::Arch;
use coroner_report::Report;
use coroner_report::model::{Address, Explanation, FaultKind};

use crate::bad_operand::NEAR_NULL;
use crate::memory_map;

/// The position of an error code's lower bit.
const TOP_BYTE_IGNORED: u32 = 53;
const TOP_BYTE_USED: u32 = 61;

/// Whether a bit of an address belongs to an error code, if the top byte is ignored.
pub(crate) fn is_error_code_bit(arch: Arch, bit: u32) -> bool {
    arch == Arch::Aarch64 && (bit == TOP_BYTE_IGNORED || bit == TOP_BYTE_IGNORED + 1)
}

/// Describes a bad pointer that contains an error code, in a sentence.
pub(crate) fn describe(report: &Report, explanation: &Explanation) -> Option<String> {
    let is_open = matches!(explanation.kind, FaultKind::Unmapped | FaultKind::NonCanonical | FaultKind::JumpToNowhere);
    let registers = report.crashed_thread()?.registers.as_ref()?;
    if !is_open || registers.arch != Some(Arch::Aarch64) {
        return None;
    }
    let value = explanation.operand.as_ref()?.value?.0;
    let uses_top_byte = report.header.os.is_apple();
    [(TOP_BYTE_IGNORED, 0xff << 48, true), (TOP_BYTE_USED, 0xffff << 48, uses_top_byte)].into_iter().find_map(
        |(shift, upper, is_possible): (u32, u64, bool)| {
            let key = match value >> shift & 3 {
                1 => "A",
                2 => "B",
                _ => return None,
            };
            let good = value & !(3 << shift);
            if !is_possible || good & upper != 0 || good & !upper < NEAR_NULL {
                return None;
            }
            let place = memory_map::describe_address(report, Address(good)).map_or_else(String::new, |place| format!(": {place}"));
            let (high, good) = (shift + 1, Address(good));
            Some(format!(
                "possible pointer authentication failure: {} is {good} with the error code of key {key} in bits {high} and {shift}{place}",
                Address(value)
            ))
        },
    )
}
