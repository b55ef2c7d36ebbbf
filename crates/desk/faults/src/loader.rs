//! Faults while the dynamic linker holds its lock.

use std::hint::black_box;

#[inline(never)]
pub(crate) fn in_dl_iterate_phdr() -> u64 {
    // SAFETY: the callback has the signature that dl_iterate_phdr expects and ignores its data.
    unsafe { libc::dl_iterate_phdr(Some(on_image), std::ptr::null_mut()) as u64 }
}

#[inline(never)]
unsafe extern "C" fn on_image(
    _image: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    _data: *mut libc::c_void,
) -> libc::c_int {
    black_box(crate::memory::null_store()) as libc::c_int
}

/// Loads a library, created in memory, whose constructor calls [`crate::memory::null_store`].
#[cfg(target_os = "linux")]
#[inline(never)]
pub(crate) fn in_constructor() -> u64 {
    use std::io::Write as _;
    use std::os::fd::FromRawFd as _;

    // SAFETY: the name is constant and NUL-terminated; the descriptor is new and owned by this
    // function.
    let mut file = unsafe {
        let descriptor = libc::syscall(libc::SYS_memfd_create, c"constructor".as_ptr(), 0) as i32;
        assert!(descriptor >= 0, "no memory file: {}", std::io::Error::last_os_error());
        std::fs::File::from_raw_fd(descriptor)
    };
    file.write_all(&library_whose_constructor_calls(crate::memory::null_store as *const () as u64))
        .expect("a memory file takes two pages");
    let path = format!("/proc/{}/fd/{}\0", std::process::id(), std::os::fd::AsRawFd::as_raw_fd(&file));
    // SAFETY: the path is NUL-terminated. Running the library's constructor is the point.
    let library = unsafe { libc::dlopen(path.as_ptr().cast(), libc::RTLD_NOW) };
    black_box(library) as u64
}

/// Creates an ELF shared library that has only a constructor, which calls one absolute address.
///
/// It has one page of headers and code, and one of dynamic entries, which the dynamic linker
/// relocates in place, so that page must be writable.
#[cfg(target_os = "linux")]
fn library_whose_constructor_calls(address: u64) -> Vec<u8> {
    const PAGE: u64 = 0x1_0000; // The largest page of arm64 Linux.
    const CODE: u64 = 0x400;
    const MACHINE: u16 = if cfg!(target_arch = "x86_64") { 62 } else { 183 }; // EM_X86_64, EM_AARCH64

    #[cfg(target_arch = "x86_64")]
    let code = {
        let mut code = vec![
            0x55, // push rbp
            0x48, 0x89, 0xe5, // mov rbp, rsp
            0x48, 0xb8, // movabs rax, address
        ];
        code.extend(address.to_le_bytes());
        code.extend([
            0xff, 0xd0, // call rax
            0x5d, // pop rbp
            0xc3, // ret
        ]);
        code
    };
    #[cfg(target_arch = "aarch64")]
    let code = {
        let mut code = Vec::new();
        for instruction in [
            0xa9bf_7bfd_u32, // stp x29, x30, [sp, #-16]!
            0x9100_03fd,     // mov x29, sp
            0x5800_0090,     // ldr x16, the word after the code
            0xd63f_0200,     // blr x16
            0xa8c1_7bfd,     // ldp x29, x30, [sp], #16
            0xd65f_03c0,     // ret
        ] {
            code.extend(instruction.to_le_bytes());
        }
        code.extend(address.to_le_bytes());
        code
    };

    let dynamic: [(i64, u64); 6] = [
        (12, CODE),        // DT_INIT
        (5, PAGE + 0x200), // DT_STRTAB
        (10, 1),           // DT_STRSZ
        (6, PAGE + 0x208), // DT_SYMTAB, of one null symbol
        (11, 24),          // DT_SYMENT
        (0, 0),            // DT_NULL
    ];
    let dynamic_size = dynamic.len() as u64 * 16;

    let mut bytes = Vec::new();
    bytes.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0"); // 64-bit, little-endian, System V
    bytes.extend(3_u16.to_le_bytes()); // ET_DYN
    bytes.extend(MACHINE.to_le_bytes());
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend(0_u64.to_le_bytes()); // no entry point
    bytes.extend(64_u64.to_le_bytes()); // program headers follow
    bytes.extend(0_u64.to_le_bytes()); // no section headers
    bytes.extend(0_u32.to_le_bytes());
    for half in [64_u16, 56, 3, 0, 0, 0] {
        bytes.extend(half.to_le_bytes()); // sizes and counts of headers
    }
    // type, flags, offset, virtual address, size in file and memory, alignment
    let mut segment = |kind: u32, flags: u32, offset: u64, size: u64, align: u64| {
        bytes.extend(kind.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        for word in [offset, offset, offset, size, size, align] {
            bytes.extend(word.to_le_bytes());
        }
    };
    segment(1, 5, 0, CODE + code.len() as u64, PAGE); // PT_LOAD, read and execute
    segment(1, 6, PAGE, 0x220, PAGE); // PT_LOAD, read and write
    segment(2, 6, PAGE, dynamic_size, 8); // PT_DYNAMIC
    bytes.resize(CODE as usize, 0);
    bytes.extend(code);
    bytes.resize(PAGE as usize, 0);
    for (tag, value) in dynamic {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(value.to_le_bytes());
    }
    bytes.resize(PAGE as usize + 0x220, 0);
    bytes
}
