//! A fault on a stack that blocks all readers forever, like a page in migration, or in a file on a
//! network file system whose server doesn't respond.

use std::arch::asm;
use std::os::fd::{FromRawFd as _, IntoRawFd as _, OwnedFd};

/// Size of the memory: large enough to contain everything near the stack pointer.
const SIZE: usize = 1 << 16;

// <linux/userfaultfd.h>
const UFFD_API: u64 = 0xaa;
const UFFDIO_API: libc::Ioctl = 0xc018_aa3fu32 as libc::Ioctl;
const UFFDIO_REGISTER: libc::Ioctl = 0xc020_aa00u32 as libc::Ioctl;
const UFFDIO_REGISTER_MODE_MISSING: u64 = 1;

/// Whether this process may create pages that also block the kernel, which requires
/// `CAP_SYS_PTRACE` or the sysctl `vm.unprivileged_userfaultfd`.
pub fn can_block() -> bool {
    userfaultfd().is_ok()
}

fn userfaultfd() -> std::io::Result<OwnedFd> {
    // SAFETY: creates a descriptor.
    let descriptor = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
    if descriptor < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open and owned here.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as i32) })
}

/// Maps memory that blocks its readers if the system allows it, else ordinary memory.
fn map() -> usize {
    // SAFETY: a new anonymous mapping touches nothing that exists.
    let memory = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(std::ptr::null_mut(), SIZE, protection, libc::MAP_PRIVATE | libc::MAP_ANON, -1, 0)
    };
    assert!(memory != libc::MAP_FAILED, "can't map memory for the stack");
    if let Ok(descriptor) = userfaultfd() {
        // Faults are never resolved; the descriptor stays open until the process ends.
        let descriptor = descriptor.into_raw_fd();
        let mut api = [UFFD_API, 0, 0];
        let mut register = [memory as u64, SIZE as u64, UFFDIO_REGISTER_MODE_MISSING, 0];
        // SAFETY: the kernel reads and writes structures of three and of four 64-bit words.
        unsafe {
            assert_eq!(libc::ioctl(descriptor, UFFDIO_API, api.as_mut_ptr()), 0, "UFFDIO_API failed");
            assert_eq!(libc::ioctl(descriptor, UFFDIO_REGISTER, register.as_mut_ptr()), 0, "UFFDIO_REGISTER failed");
        }
    }
    memory as usize
}

#[inline(never)]
pub(crate) fn blocked_stack_page() -> u64 {
    let sp = map() + SIZE / 2;
    // SAFETY: none: this crashes on purpose.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!("mov rsp, {sp}", "mov dword ptr [{null}], 1", sp = in(reg) sp, null = in(reg) 0_usize, options(noreturn));
        #[cfg(target_arch = "aarch64")]
        asm!("mov sp, {sp}", "str wzr, [{null}]", sp = in(reg) sp, null = in(reg) 0_usize, options(noreturn));
    }
}
