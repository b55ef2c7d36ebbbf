//! Fill patterns of uninitialised and freed memory.
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
//! this as an example. For the bytes listed here the description only claims "as of".

/// Maximum distance of an element's or a field's address from the filled pointer, in bytes.
const REACH: u64 = 0x1_0000;

/// Two of the words that Go writes.
const CLOBBERED: u64 = 0xdead_beef_dead_beef;

/// Patterns by the byte that is repeated in all eight bytes of a pointer.
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

/// Returns the origin of a fill pattern that `value` equals or is close to. `None` for other
/// values, including all valid addresses of a process (programs use addresses below 2⁴⁷ or 2⁴⁸, and
/// the upper bytes of a pattern are not zero).
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
