//! Fill patterns of uninitialized and freed memory.
//!
//! - `5a`, `a5`: jemalloc's `opt.junk`: freed, allocated. Sources: `JEMALLOC_FREE_JUNK`,
//!   `JEMALLOC_ALLOC_JUNK` in jemalloc's `util.h`; jemalloc(3). FreeBSD's malloc is jemalloc.
//! - `e5`, `e4`: Mozilla's jemalloc: freed, allocated. Source: `kAllocPoison`, `kAllocJunk` in
//!   `mozmemory_utils.h`.
//! - `df`, `d0`, `de`: mimalloc's debug builds: freed, allocated, padding. Source:
//!   `MI_DEBUG_FREED`, `MI_DEBUG_UNINIT`, `MI_DEBUG_PADDING` in `mimalloc/types.h`.
//! - `dd`, `cd`, `fd`: Microsoft's debug heap and CPython's: freed, allocated, guard bytes.
//!   Sources: "CRT debug heap details"; `PYMEM_DEADBYTE`, `PYMEM_CLEANBYTE`, `PYMEM_FORBIDDENBYTE`
//!   in `pycore_pymem.h`.
//! - `cd`, `ab`, `ef`: PartitionAlloc: freed, allocated, quarantined. Source: `kFreedByte`,
//!   `kUninitializedByte`, `kQuarantinedByte` in `partition_alloc_constants.h`.
//! - `cc`: Microsoft's `/RTC`: variables on the stack. Source: "/RTC (Run-time error checks)".
//! - `55`, `aa`: Darwin's `MallocScribble`, `MallocPreScribble`: freed, allocated. Sources:
//!   `SCRABBLE_BYTE`, `SCRIBBLE_BYTE` in libmalloc's `base.h`; malloc(3) on macOS.
//! - `be`, `55`: AddressSanitizer: `malloc_fill_byte`, `free_fill_byte` (the latter with
//!   `max_free_fill_size`). Source: `asan_flags.inc`.
//! - `ab`: Scudo's pattern fill: allocated. Source: `PatternFillByte` in
//!   `scudo/standalone/common.h`.
//! - `eb`, `ef`: bionic's malloc debug: allocated, freed. Source: `DEFAULT_FILL_ALLOC_VALUE`,
//!   `DEFAULT_FILL_FREE_VALUE` in `libc/malloc_debug/Config.h`.
//! - `aa`: Clang's `-ftrivial-auto-var-init=pattern`; Zig's `undefined`. Sources: `patternFor` in
//!   `PatternInit.cpp`; Zig's language reference.
//! - `fe`: GCC's `-ftrivial-auto-var-init=pattern`. Source: "Optimize Options" in GCC's manual.
//! - `deadbeef`: Go: freed, with `GODEBUG=clobberfree=1`. Source: `clobberfree` in
//!   `runtime/mgcsweep.go`.
//! - `01`: Rust's `mem::uninitialized`. Source: its documentation.
//!
//! glibc's `MALLOC_PERTURB_` fills freed memory with a byte chosen by the user, and new memory with
//! its complement (`free_perturb`, `alloc_perturb` in `malloc.c`). If all eight bytes are the same,
//! but neither listed here nor a printable character, the value is described as filled memory, with
//! this as an example. For the bytes listed here the description only claims "typical of".

/// Maximum distance of an element's or a field's address from the filled pointer, in bytes.
const MAX_DISTANCE: u64 = 0x1_0000;

/// Two of the words that Go writes.
const CLOBBERED: u64 = 0xdead_beef_dead_beef;

/// Patterns by the byte that is repeated in all eight bytes of a pointer.
const PATTERNS: &[(u8, &str)] = &[
    (0x01, "0x01 bytes, typical of Rust's mem::uninitialized"),
    (0x55, "0x55 bytes, typical of memory freed with Darwin's MallocScribble or AddressSanitizer's free_fill_byte"),
    (0x5a, "0x5a bytes, typical of freed jemalloc memory (opt.junk)"),
    (0xa5, "0xa5 bytes, typical of uninitialized jemalloc memory (opt.junk)"),
    (
        0xaa,
        "0xaa bytes, typical of uninitialized memory (Darwin's MallocPreScribble, Clang's -ftrivial-auto-var-init=pattern, Zig's undefined)",
    ),
    (0xab, "0xab bytes, typical of uninitialized Scudo or PartitionAlloc memory"),
    (0xbe, "0xbe bytes, typical of uninitialized AddressSanitizer memory"),
    (0xcc, "0xcc bytes, typical of an uninitialized stack variable (Microsoft's /RTC)"),
    (
        0xcd,
        "0xcd bytes, typical of uninitialized memory in Microsoft's debug heap or CPython, or of freed PartitionAlloc memory",
    ),
    (0xd0, "0xd0 bytes, typical of uninitialized mimalloc memory"),
    (0xdd, "0xdd bytes, typical of freed memory in Microsoft's debug heap or CPython"),
    (0xde, "0xde bytes, typical of mimalloc's padding after an allocation"),
    (0xdf, "0xdf bytes, typical of freed mimalloc memory"),
    (0xe4, "0xe4 bytes, typical of uninitialized memory in Mozilla's jemalloc"),
    (0xe5, "0xe5 bytes, typical of freed memory in Mozilla's jemalloc"),
    (0xeb, "0xeb bytes, typical of uninitialized memory with bionic's malloc debug"),
    (0xef, "0xef bytes, typical of memory freed with bionic's malloc debug, or of quarantined PartitionAlloc memory"),
    (0xfd, "0xfd bytes, typical of guard bytes in Microsoft's debug heap or CPython"),
    (0xfe, "0xfe bytes, typical of an uninitialized variable (GCC's -ftrivial-auto-var-init=pattern)"),
];

/// Returns the origin of a fill pattern that `value` equals or is close to. `None` for other
/// values, including all valid addresses of a process (programs use addresses below 2⁴⁷ or 2⁴⁸, and
/// the upper bytes of a pattern are not zero).
pub(crate) fn describe(value: u64) -> Option<&'static str> {
    let is_near = |filled: u64| value.wrapping_sub(filled) < MAX_DISTANCE || filled.wrapping_sub(value) < MAX_DISTANCE;
    if is_near(CLOBBERED) {
        return Some("0xdeadbeef words, typical of freed Go memory (GODEBUG=clobberfree=1)");
    }
    let known = PATTERNS.iter().find(|(byte, _)| is_near(u64::from_ne_bytes([*byte; 8]))).map(|(_, what)| *what);
    known.or_else(|| {
        let [.., byte] = value.to_le_bytes();
        let is_filled =
            !(0x20..0x7f).contains(&byte) && !matches!(byte, 0 | 0xff) && is_near(u64::from_ne_bytes([byte; 8]));
        is_filled.then_some("the same byte eight times, typical of filled memory (such as glibc's MALLOC_PERTURB_)")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fill_patterns_are_recognized_and_addresses_are_not() {
        assert!(describe(0x5a5a_5a5a_5a5a_5a5a).unwrap().contains("jemalloc"));
        assert!(describe(0xdfdf_dfdf_dfdf_dfdf + 0x18).unwrap().contains("mimalloc"));
        assert!(describe(0xe5e5_e5e5_e5e5_e5e5 - 8).unwrap().contains("Mozilla"));
        assert!(describe(0x8787_8787_8787_8787).unwrap().contains("MALLOC_PERTURB_"));
        for ordinary in [
            0x4141_4141_4141_4141,
            0,
            8,
            0x5a5a_5a5a,
            0x7fff_ffff_e000,
            0x5555_5555_5555,
            0xaaaa_aaaa_0000,
            u64::MAX,
            0x0101_0101,
        ] {
            assert_eq!(describe(ordinary), None, "{ordinary:#x}");
        }
    }
}
