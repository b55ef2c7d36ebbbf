//! Compares the code that ran with the image's file.

use coroner_process::registers::Arch;
use coroner_report::Report;
use coroner_report::model::{Address, Bytes, CodeChange, CodeChangeKind};

use crate::code_source::CodeSource;

/// Maximum number of code pieces in a report, and maximum size of each, in bytes. Reports of
/// crashes contain less.
const MAX_PIECES: usize = 16;
const MAX_PIECE: usize = 4096;
/// Maximum number of relocated bytes in a crash's code.
const MAX_RELOCATED: usize = 256;

/// Compares the report's code with a file's. `None` if they are equal, or if the file isn't known
/// to be the one that ran.
pub(crate) fn compare(report: &Report, files: &dyn CodeSource) -> Option<CodeChange> {
    let mut all: Vec<(u64, u8, u8)> = Vec::new();
    for piece in report.code.iter().take(MAX_PIECES) {
        // Only as far as the file is known: the report's piece may extend beyond the image.
        let length = piece.bytes.0.len().min(MAX_PIECE);
        let Some(file) = files.code(piece.address, length).filter(|code| code.is_verified) else { continue };
        let pairs = piece.bytes.0.iter().zip(&file.bytes).enumerate();
        let different = pairs.filter(|(_, (found, expected))| found != expected);
        all.extend(
            different.map(|(at, (found, expected))| (piece.address.0.wrapping_add(at as u64), *found, *expected)),
        );
    }
    if all.len() <= MAX_RELOCATED {
        all.retain(|(at, ..)| !is_relocated(report, *at));
    }
    // Pieces may overlap.
    all.sort_unstable();
    all.dedup();
    let (first, last) = (all.first()?.0, all.last()?.0);
    let kind = match all.as_slice() {
        [(_, found, expected)] if (found ^ expected).is_power_of_two() => CodeChangeKind::OneBit,
        _ if all.iter().all(|(at, ..)| is_breakpoint(report, *at)) => CodeChangeKind::Breakpoint,
        _ => CodeChangeKind::Other,
    };
    // If there are several distant changes, only the first is reported.
    let end = if last.wrapping_sub(first) < 16 { last } else { first };
    let bytes = |source: &dyn Fn(u64) -> Option<u8>| Bytes((first..=end).map_while(source).collect());
    let ran = |at: u64| byte(report, at);
    let expected = |at: u64| files.code(Address(at), 1)?.bytes.first().copied();
    Some(CodeChange { address: Address(first), kind, found: bytes(&ran), expected: bytes(&expected) })
}

/// Whether a byte is part of an address in an image.
///
/// The dynamic linker also writes addresses into code if a library is linked with text relocations
/// (`DT_TEXTREL`).
fn is_relocated(report: &Report, at: u64) -> bool {
    (at.saturating_sub(7)..=at).any(|start| {
        let word = (0..8)
            .rev()
            .try_fold(0, |word, place| Some(word << 8 | u64::from(byte(report, start.checked_add(place)?)?)));
        word.is_some_and(|word| report.image_at(Address(word)).is_some())
    })
}

fn byte(report: &Report, at: u64) -> Option<u8> {
    report.code.iter().find_map(|piece| {
        let place = usize::try_from(at.checked_sub(piece.address.0)?).ok()?;
        piece.bytes.0.get(place).copied()
    })
}

/// Whether a changed byte belongs to a breakpoint instruction.
fn is_breakpoint(report: &Report, at: u64) -> bool {
    match report.header.arch {
        Some(Arch::X86_64) => byte(report, at) == Some(0xcc),
        // `brk`, with any number; instructions are aligned.
        Some(Arch::Aarch64) => {
            let word =
                (0..4).rev().try_fold(0, |word, place| Some(word << 8 | u32::from(byte(report, (at & !3) + place)?)));
            word.is_some_and(|word| word & 0xffe0_001f == 0xd420_0000)
        }
        None => false,
    }
}

/// Describes a change in a sentence.
pub(crate) fn describe(change: &CodeChange) -> String {
    let bytes = |bytes: &Bytes| bytes.0.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
    let (found, expected) = (bytes(&change.found), bytes(&change.expected));
    let address = change.address;
    match change.kind {
        CodeChangeKind::OneBit => format!(
            "the code at {address} differs from its file in one bit ({found} instead of {expected}): faulty memory or a stray write"
        ),
        CodeChangeKind::Breakpoint => {
            format!("the code at {address} contains a breakpoint that is not in its file")
        }
        _ => format!(
            "the code at {address} differs from its file ({found} instead of {expected}): a patch, a hook or another build"
        ),
    }
}
