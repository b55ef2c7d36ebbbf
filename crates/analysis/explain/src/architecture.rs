//! Differences between the architectures: register names, pointers, the stack.

use coroner_process::registers::Arch;

/// Returns the number of bytes that a call pushes on the stack.
pub(crate) fn pushed_by_call(arch: Arch) -> u64 {
    match arch {
        Arch::X86_64 => 8,
        Arch::Aarch64 => 0,
    }
}

/// x86_64 registers with the names of their parts.
///
/// Each has names for its lowest four bytes, two bytes and one byte; some have a name for their
/// second byte.
const PARTS: [(&str, [&str; 4]); 16] = [
    ("rax", ["eax", "ax", "al", "ah"]),
    ("rbx", ["ebx", "bx", "bl", "bh"]),
    ("rcx", ["ecx", "cx", "cl", "ch"]),
    ("rdx", ["edx", "dx", "dl", "dh"]),
    ("rsi", ["esi", "si", "sil", ""]),
    ("rdi", ["edi", "di", "dil", ""]),
    ("rbp", ["ebp", "bp", "bpl", ""]),
    ("rsp", ["esp", "sp", "spl", ""]),
    ("r8", ["r8d", "r8w", "r8b", ""]),
    ("r9", ["r9d", "r9w", "r9b", ""]),
    ("r10", ["r10d", "r10w", "r10b", ""]),
    ("r11", ["r11d", "r11w", "r11b", ""]),
    ("r12", ["r12d", "r12w", "r12b", ""]),
    ("r13", ["r13d", "r13w", "r13b", ""]),
    ("r14", ["r14d", "r14w", "r14b", ""]),
    ("r15", ["r15d", "r15w", "r15b", ""]),
];

/// Returns the name of a register's part: its lowest bytes or (`is_second`) its second one.
pub(crate) fn part_name(whole: &'static str, bytes: usize, is_second: bool) -> &'static str {
    let place = match bytes {
        4 => 0,
        2 => 1,
        1 if is_second => 3,
        1 => 2,
        _ => return whole,
    };
    let parts = PARTS.iter().find(|(name, _)| *name == whole);
    parts.and_then(|(_, parts)| parts.get(place)).filter(|name| !name.is_empty()).copied().unwrap_or(whole)
}

/// Returns the register to which a name belongs, and the number of its lowest bytes, unless all.
/// `None` for a second byte.
pub(crate) fn whole_register(arch: Arch, name: &str) -> Option<(&str, Option<u64>)> {
    let part = || PARTS.iter().find_map(|(whole, parts)| Some((*whole, parts.iter().position(|part| *part == name)?)));
    match part().filter(|_| arch == Arch::X86_64) {
        None => Some((name, None)),
        Some((whole, place @ 0..=2)) => Some((whole, Some(4 >> place))),
        Some(_) => None,
    }
}

/// The bits of an arm64 pointer that address memory: the top byte may be a tag.
const UNTAGGED: u64 = 0x00ff_ffff_ffff_ffff;

/// Whether an address is canonical, that is, possible in a process.
///
/// On x86_64 with four-level page tables, on arm64 with 48-bit addresses, ignoring the tag.
pub(crate) fn is_canonical(arch: Arch, address: u64) -> bool {
    match arch {
        Arch::X86_64 => (address as i64) << 16 >> 16 == address as i64,
        Arch::Aarch64 => matches!(address >> 48 & 0xff, 0 | 0xff),
    }
}

/// Returns the bits of a pointer that address memory.
pub(crate) fn address_mask(arch: Arch) -> u64 {
    match arch {
        Arch::X86_64 => u64::MAX,
        Arch::Aarch64 => UNTAGGED,
    }
}
