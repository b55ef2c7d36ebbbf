//! Faults in a program that has overwritten its own read-only sections, as after a stray `mprotect`
//! and a wild copy.
//!
//! Overwriting and fault are one block of assembly, which needs nothing that it overwrites.

use std::arch::asm;

const GOT: &[&str] = &[".got", ".got.plt"];
const RELRO: &[&str] = &[".data.rel.ro", ".init_array", ".fini_array"];
const RODATA: &[&str] = &[".rodata"];
const UNWIND: &[&str] = &[".eh_frame", ".eh_frame_hdr", ".gcc_except_table"];
const DYNAMIC: &[&str] =
    &[".dynamic", ".dynsym", ".dynstr", ".gnu.hash", ".hash", ".gnu.version", ".rela.dyn", ".rela.plt"];

#[inline(never)]
pub(crate) fn global_offset_table() -> u64 {
    overwrite_and_store(&[GOT])
}

#[inline(never)]
pub(crate) fn relocated_constants() -> u64 {
    overwrite_and_store(&[RELRO])
}

#[inline(never)]
pub(crate) fn constants() -> u64 {
    overwrite_and_store(&[RODATA])
}

#[inline(never)]
pub(crate) fn unwind_information() -> u64 {
    overwrite_and_store(&[UNWIND])
}

#[inline(never)]
pub(crate) fn dynamic_linking() -> u64 {
    overwrite_and_store(&[DYNAMIC])
}

/// The dynamic linker's list of images ends after the program.
#[inline(never)]
pub(crate) fn link_map() -> u64 {
    // SAFETY: in glibc and musl the program's handle is its `struct link_map` (`link.h`), whose
    // fourth word is `l_next`. The process crashes afterwards.
    unsafe { libc::dlopen(std::ptr::null(), libc::RTLD_LAZY).cast::<usize>().add(3).write_volatile(0) };
    overwrite_and_store(&[])
}

#[inline(never)]
pub(crate) fn all() -> u64 {
    overwrite_and_store(&[GOT, RELRO, RODATA, UNWIND, DYNAMIC])
}

/// A section of this program in memory.
#[repr(C)]
struct Range {
    start: usize,
    length: usize,
}

/// Returns this program's sections with these names.
fn sections(names: &[&[&str]]) -> Vec<Range> {
    let file = std::fs::read("/proc/self/exe").expect("can't read /proc/self/exe");
    // Fields of the 64-bit ELF header (e_entry, e_shoff, e_shentsize, e_shnum, e_shstrndx) and of
    // section headers.
    let word = |at: usize| usize::from_le_bytes(file[at..at + 8].try_into().expect("eight bytes"));
    let half = |at: usize| usize::from(u16::from_le_bytes(file[at..at + 2].try_into().expect("two bytes")));
    let (entry, table, size, count, of_names) = (word(24), word(40), half(58), half(60), half(62));
    // SAFETY: only reads a number.
    let bias = unsafe { libc::getauxval(libc::AT_ENTRY) } as usize - entry;
    let names_at = word(table + of_names * size + 24);
    let name = |header: usize| {
        let at = names_at + (word(header) & 0xffff_ffff);
        let length = file[at..].iter().position(|byte| *byte == 0).expect("a name is not NUL-terminated");
        std::str::from_utf8(&file[at..at + length]).unwrap_or_default()
    };
    let headers = (0..count).map(|index| table + index * size);
    let wanted = headers.filter(|header| names.iter().any(|group| group.contains(&name(*header))));
    wanted.map(|header| Range { start: bias + word(header + 16), length: word(header + 32) }).collect()
}

/// Overwrites these sections and stores to address 0.
#[inline(never)]
fn overwrite_and_store(names: &[&[&str]]) -> u64 {
    let ranges = sections(names);
    assert!(names.is_empty() || !ranges.is_empty(), "this program has no sections {names:?}");
    // SAFETY: only reads a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    for Range { start, length } in &ranges {
        let first = start & !(page - 1);
        // SAFETY: pages of this program's image; code that may be in them stays executable.
        let failed = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
            libc::mprotect(first as *mut libc::c_void, start + length - first, protection)
        };
        assert_eq!(failed, 0, "can't make the section writable");
    }
    // SAFETY: none: this destroys the program and crashes on purpose.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!(
            "2: test rdx, rdx", "jz 3f",
            "mov rdi, [rsi]", "mov rcx, [rsi + 8]", "rep stosb",
            "add rsi, 16", "dec rdx", "jmp 2b",
            "3: mov dword ptr [rdx], 1",
            in("rsi") ranges.as_ptr(), in("rdx") ranges.len(), in("al") 0xa5_u8, options(noreturn),
        );
        #[cfg(target_arch = "aarch64")]
        asm!(
            "2: cbz x1, 5f",
            "ldp x2, x3, [x0], #16",
            "3: cbz x3, 4f", "strb w4, [x2], #1", "sub x3, x3, #1", "b 3b",
            "4: sub x1, x1, #1", "b 2b",
            "5: str wzr, [x1]",
            in("x0") ranges.as_ptr(), in("x1") ranges.len(), in("w4") 0xa5_u32, options(noreturn),
        );
    }
}
