//! Shared by the tests and examples of `coroner-unwind`: registers of the running thread, memory of
//! this process, its loaded images, and unwind sections.
#![allow(clippy::missing_panics_doc, clippy::inline_always, reason = "a test fails by a panic")]

use coroner_process::memory::{Memory, Unreadable};
use coroner_process::registers::Registers;
use coroner_unwind::{AddressRange, Found, Image, Images};

#[cfg(target_vendor = "apple")]
mod darwin;
#[cfg(not(target_vendor = "apple"))]
mod linux;
pub mod unwind_info;

#[cfg(target_vendor = "apple")]
use darwin as system;
#[cfg(not(target_vendor = "apple"))]
use linux as system;

pub use system::context_registers;

/// Assembly of x86_64 in which `cfa_in_epilogue OFFSET` is `.cfi_def_cfa_offset OFFSET`, but on
/// Darwin nothing: there LLVM's assembler makes compact unwind of all of a function's directives,
/// as if all stood in its prologue, and Apple's compilers write none for epilogues.
///
/// The assembly must end with `.purgem cfa_in_epilogue`: the compiler may give several modules'
/// assembly to the assembler at once.
#[cfg(not(target_vendor = "apple"))]
#[macro_export]
macro_rules! epilogue_directive {
    () => {
        ".macro cfa_in_epilogue offset\n.cfi_def_cfa_offset \\offset\n.endm"
    };
}
/// Assembly of x86_64 in which `cfa_in_epilogue OFFSET` is accepted and has no effect, as Apple's
/// compilers write no directives for epilogues.
#[cfg(target_vendor = "apple")]
#[macro_export]
macro_rules! epilogue_directive {
    () => {
        ".macro cfa_in_epilogue offset\n.endm"
    };
}

/// The architecture of this test program.
#[cfg(target_arch = "x86_64")]
pub type Native = coroner_unwind::X86_64;
/// The architecture of this test program.
#[cfg(target_arch = "aarch64")]
pub type Native = coroner_unwind::Aarch64;

/// The registers at the place of the call.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn capture_here() -> Registers {
    let mut registers = Registers::default();
    // SAFETY: stores the general registers and the address of the next instruction to `registers`.
    unsafe {
        core::arch::asm!(
            "mov [rax], rax", "mov [rax + 8], rdx", "mov [rax + 16], rcx", "mov [rax + 24], rbx",
            "mov [rax + 32], rsi", "mov [rax + 40], rdi", "mov [rax + 48], rbp", "mov [rax + 56], rsp",
            "mov [rax + 64], r8", "mov [rax + 72], r9", "mov [rax + 80], r10", "mov [rax + 88], r11",
            "mov [rax + 96], r12", "mov [rax + 104], r13", "mov [rax + 112], r14", "mov [rax + 120], r15",
            "lea rdx, [rip]", "mov [rax + 128], rdx",
            in("rax") &raw mut registers, out("rdx") _, options(nostack),
        );
    }
    registers
}

/// The registers at the place of the call.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub fn capture_here() -> Registers {
    let mut registers = Registers::default();
    // SAFETY: stores the general registers and the address of the next instruction to `registers`.
    unsafe {
        core::arch::asm!(
            "stp x0, x1, [x9]", "stp x2, x3, [x9, #16]", "stp x4, x5, [x9, #32]", "stp x6, x7, [x9, #48]",
            "str x8, [x9, #64]", "stp x10, x11, [x9, #80]", "stp x12, x13, [x9, #96]", "stp x14, x15, [x9, #112]",
            "stp x16, x17, [x9, #128]", "stp x18, x19, [x9, #144]", "stp x20, x21, [x9, #160]",
            "stp x22, x23, [x9, #176]", "stp x24, x25, [x9, #192]", "stp x26, x27, [x9, #208]",
            "stp x28, x29, [x9, #224]", "mov x10, sp", "stp x30, x10, [x9, #240]", "adr x10, .",
            "str x10, [x9, #256]",
            in("x9") &raw mut registers, out("x10") _, options(nostack),
        );
    }
    registers
}

/// This process, read by the kernel (through a pipe, which qemu-user has too): a bad address is an
/// error.
#[derive(Debug)]
pub struct ThisProcess {
    pipe: [i32; 2],
    /// Number of reads.
    pub reads: u64,
}

impl Default for ThisProcess {
    fn default() -> Self {
        let mut pipe = [0; 2];
        // SAFETY: fills two descriptors.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        ThisProcess { pipe, reads: 0 }
    }
}

impl Drop for ThisProcess {
    fn drop(&mut self) {
        for end in self.pipe {
            // SAFETY: its own descriptors.
            unsafe { libc::close(end) };
        }
    }
}

impl Memory for ThisProcess {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        self.reads += 1;
        // SAFETY: the kernel checks the address; what goes into the pipe comes out into `into`.
        unsafe {
            let written = libc::write(self.pipe[1], address as *const libc::c_void, into.len());
            let read = if written > 0 { libc::read(self.pipe[0], into.as_mut_ptr().cast(), into.len()) } else { 0 };
            if read == into.len() as isize { Ok(()) } else { Err(Unreadable { address }) }
        }
    }
}

/// Plain loads: for what is known to be readable.
#[derive(Debug, Clone, Copy, Default)]
pub struct PlainLoads;

impl Memory for PlainLoads {
    #[inline]
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        if address < 4096 {
            return Err(Unreadable { address });
        }
        // SAFETY: the tests that use this read mapped memory only.
        unsafe { core::ptr::copy_nonoverlapping(address as *const u8, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    #[inline]
    fn read_u64(&mut self, address: u64) -> Result<u64, Unreadable> {
        if address < 4096 {
            return Err(Unreadable { address });
        }
        // SAFETY: as above.
        Ok(unsafe { core::ptr::read_unaligned(address as *const u64) })
    }

    #[inline]
    fn read_pair(&mut self, address: u64) -> Result<(u64, u64), Unreadable> {
        if address < 4096 {
            return Err(Unreadable { address });
        }
        // SAFETY: as above.
        Ok(unsafe { core::ptr::read_unaligned(address as *const (u64, u64)) })
    }
}

/// The images of this process, and what of its memory is executable.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Ascending by address.
    pub images: Vec<Image>,
    executable: Vec<AddressRange>,
}

impl Loaded {
    /// Returns the images that the dynamic linker has loaded now, and the executable ranges.
    pub fn now() -> Loaded {
        let mut images = system::images();
        images.sort_by_key(|image| image.text.start);
        let executable = system::executable(&images);
        Loaded { images, executable }
    }
}

impl Images for Loaded {
    fn find(&self, address: u64) -> Option<Image> {
        self.images[..].find(address)
    }

    fn is_executable(&self, address: u64) -> Option<bool> {
        Some(self.executable.iter().any(|range| range.contains(address)))
    }
}

/// Whether a frame was found by the unwind data that a compiler wrote for it: call frame
/// information on Linux; in a Mach-O image compact unwind, which leaves what it can't encode to
/// call frame information.
pub fn by_unwind_data(found: Found) -> bool {
    found == Found::Cfi || (cfg!(target_vendor = "apple") && found == Found::CompactUnwind)
}
