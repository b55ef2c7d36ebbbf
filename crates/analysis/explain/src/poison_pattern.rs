//! What memory without a value is filled with.
//!
//! | bytes | who | source |
//! |---|---|---|
//! | `5a`, `a5` | jemalloc's `opt.junk`: freed, allocated | `JEMALLOC_FREE_JUNK`, `JEMALLOC_ALLOC_JUNK` of jemalloc's `util.h`; jemalloc(3). FreeBSD's malloc is jemalloc |
//! | `e5`, `e4` | Mozilla's jemalloc: freed, allocated | `kAllocPoison`, `kAllocJunk` of `mozmemory_utils.h` |
//! | `df`, `d0`, `de` | mimalloc's debug builds: freed, allocated, padding | `MI_DEBUG_FREED`, `MI_DEBUG_UNINIT`, `MI_DEBUG_PADDING` of `mimalloc/types.h` |
//! | `dd`, `cd`, `fd` | Microsoft's debug heap and CPython's: freed, allocated, guard bytes | "CRT debug heap details"; `PYMEM_DEADBYTE`, `PYMEM_CLEANBYTE`, `PYMEM_FORBIDDENBYTE` of `pycore_pymem.h` |
//! | `cd`, `ab`, `ef` | PartitionAlloc: freed, allocated, quarantined | `kFreedByte`, `kUninitializedByte`, `kQuarantinedByte` of `partition_alloc_constants.h` |
//! | `cc` | Microsoft's `/RTC`: a stack's variables | "/RTC (Run-time error checks)" |
//! | `55`, `aa` | Darwin's `MallocScribble`, `MallocPreScribble`: freed, allocated | `SCRABBLE_BYTE`, `SCRIBBLE_BYTE` of libmalloc's `base.h`; malloc(3) of macOS |
//! | `be`, `55` | AddressSanitizer: `malloc_fill_byte`, `free_fill_byte` (the latter with `max_free_fill_size`) | `asan_flags.inc` |
//! | `ab` | Scudo's pattern fill: allocated | `PatternFillByte` of `scudo/standalone/common.h` |
//! | `eb`, `ef` | bionic's malloc debug: allocated, freed | `DEFAULT_FILL_ALLOC_VALUE`, `DEFAULT_FILL_FREE_VALUE` of `libc/malloc_debug/Config.h` |
//! | `aa` | Clang's `-ftrivial-auto-var-init=pattern`; Zig's `undefined` | `patternFor` of `PatternInit.cpp`; Zig's language reference |
//! | `fe` | GCC's `-ftrivial-auto-var-init=pattern` | "Optimize Options" of GCC's manual |
//! | `deadbeef` | Go: freed, with `GODEBUG=clobberfree=1` | `clobberfree` of `runtime/mgcsweep.go` |
//! | `01` | Rust's `mem::uninitialized` | its documentation |
//!
//! glibc's `MALLOC_PERTURB_` fills freed memory with a byte that the user chooses and new memory with its complement (`free_perturb`,
//! `alloc_perturb` of `malloc.c`). Eight times the same byte that is none of these, and no character, is called filled memory, as by that; if
//! it is one of these, the words "as of" are all that is claimed.

/// Where the address of an element or a field may lie from the pointer that was filled.
const REACH: u64 = 0x1_0000;

/// Two words of Go's.
const CLOBBERED: u64 = 0xdead_beef_dead_beef;

/// By the byte that all eight of a pointer are.
const PATTERNS: &[(u8, &str)] = &[
    (0x01, "0x01 bytes, as of Rust's mem::uninitialized"),
    (0x55, "0x55 bytes, as of freed memory of Darwin's MallocScribble or of AddressSanitizer's free_fill_byte"),
    (0x5a, "0x5a bytes, as of freed memory of jemalloc (opt.junk)"),
    (0xa5, "0xa5 bytes, as of memory of jemalloc that was never written (opt.junk)"),
    (
        0xaa,
        "0xaa bytes, as of memory that was never written (Darwin's MallocPreScribble, Clang's -ftrivial-auto-var-init=pattern, Zig's undefined)",
    ),
    (0xab, "0xab bytes, as of memory of Scudo or PartitionAlloc that was never written"),
    (0xbe, "0xbe bytes, as of memory of AddressSanitizer's allocator that was never written"),
    (0xcc, "0xcc bytes, as of a variable on the stack that was never written (Microsoft's /RTC)"),
    (
        0xcd,
        "0xcd bytes, as of memory of Microsoft's debug heap or CPython's that was never written, or freed memory of PartitionAlloc",
    ),
    (0xd0, "0xd0 bytes, as of memory of mimalloc that was never written"),
    (0xdd, "0xdd bytes, as of freed memory of Microsoft's debug heap or CPython's"),
    (0xde, "0xde bytes, as of mimalloc's padding behind an allocation"),
    (0xdf, "0xdf bytes, as of freed memory of mimalloc"),
    (0xe4, "0xe4 bytes, as of memory of Mozilla's jemalloc that was never written"),
    (0xe5, "0xe5 bytes, as of freed memory of Mozilla's jemalloc"),
    (0xeb, "0xeb bytes, as of memory of bionic's malloc debug that was never written"),
    (0xef, "0xef bytes, as of freed memory of bionic's malloc debug, or quarantined memory of PartitionAlloc"),
    (0xfd, "0xfd bytes, as of guard bytes of Microsoft's debug heap or CPython's"),
    (0xfe, "0xfe bytes, as of a variable that was never written (GCC's -ftrivial-auto-var-init=pattern)"),
];

/// Who fills memory with what `value` is, or is near to. `None` of addresses that a process has (a program's are below 2⁴⁷ or 2⁴⁸, where a pattern's
/// upper bytes are no zeros), as of everything else.
pub(crate) fn of(value: u64) -> Option<&'static str> {
    let is_near = |filled: u64| value.wrapping_sub(filled) < REACH || filled.wrapping_sub(value) < REACH;
    if is_near(CLOBBERED) {
        return Some("0xdeadbeef words, as of freed memory of Go (GODEBUG=clobberfree=1)");
    }
    let known = PATTERNS.iter().find(|(byte, _)| is_near(u64::from_ne_bytes([*byte; 8]))).map(|(_, what)| *what);
    known.or_else(|| {
        let [.., byte] = value.to_le_bytes();
        let is_filled =
            !(0x20..0x7f).contains(&byte) && !matches!(byte, 0 | 0xff) && is_near(u64::from_ne_bytes([byte; 8]));
        is_filled.then_some("the same byte eight times, as of memory that was filled (glibc's MALLOC_PERTURB_)")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_are_known_and_addresses_are_none() {
        assert!(of(0x5a5a_5a5a_5a5a_5a5a).unwrap().contains("jemalloc"));
        assert!(of(0xdfdf_dfdf_dfdf_dfdf + 0x18).unwrap().contains("mimalloc"));
        assert!(of(0xe5e5_e5e5_e5e5_e5e5 - 8).unwrap().contains("Mozilla"));
        assert!(of(0x8787_8787_8787_8787).unwrap().contains("MALLOC_PERTURB_"));
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
            assert_eq!(of(ordinary), None, "{ordinary:#x}");
        }
    }
}
