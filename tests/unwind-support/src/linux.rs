//! Linux: `dl_iterate_phdr`, `/proc/self/maps`, the kernel's `ucontext_t`.

use coroner_process::elf::PF_X;
use coroner_process::registers::Registers;
use coroner_unwind::{AddressRange, Image};

/// The images, as the dynamic linker lists them.
pub(crate) fn images() -> Vec<Image> {
    unsafe extern "C" fn each(info: *mut libc::dl_phdr_info, _: libc::size_t, images: *mut libc::c_void) -> i32 {
        // SAFETY: dl_iterate_phdr hands over valid structures, and `images` is the vector below.
        let (info, images) = unsafe { (&*info, &mut *images.cast::<Vec<Image>>()) };
        if info.dlpi_phdr.is_null() {
            // bionic's, of the vdso.
            return 0;
        }
        // SAFETY: as above.
        let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        let mut image = Image { base: info.dlpi_addr, bias: info.dlpi_addr, ..Image::default() };
        for header in headers {
            let start = info.dlpi_addr.wrapping_add(header.p_vaddr);
            let range = AddressRange { start, end: start + header.p_memsz };
            match header.p_type {
                libc::PT_GNU_EH_FRAME => image.eh_frame_hdr = range,
                libc::PT_LOAD if header.p_flags & PF_X != 0 => image.text = range,
                _ => {}
            }
        }
        images.push(image);
        0
    }
    let mut images: Vec<Image> = Vec::new();
    // SAFETY: `each` matches the signature that is asked for.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut images).cast()) };
    images
}

/// Returns the executable ranges in the kernel's list of mappings.
pub(crate) fn executable(_images: &[Image]) -> Vec<AddressRange> {
    let mut executable = Vec::new();
    for line in std::fs::read_to_string("/proc/self/maps").unwrap().lines() {
        let (range, rest) = line.split_once(' ').unwrap();
        let (start, end) = range.split_once('-').unwrap();
        if rest.as_bytes()[2] == b'x' {
            let number = |text| u64::from_str_radix(text, 16).unwrap();
            executable.push(AddressRange { start: number(start), end: number(end) });
        }
    }
    executable
}

/// The registers of an interrupted thread.
#[cfg(target_arch = "x86_64")]
pub fn context_registers(context: &libc::ucontext_t) -> Registers {
    const ORDER: [i32; 16] = [
        libc::REG_RAX,
        libc::REG_RDX,
        libc::REG_RCX,
        libc::REG_RBX,
        libc::REG_RSI,
        libc::REG_RDI,
        libc::REG_RBP,
        libc::REG_RSP,
        libc::REG_R8,
        libc::REG_R9,
        libc::REG_R10,
        libc::REG_R11,
        libc::REG_R12,
        libc::REG_R13,
        libc::REG_R14,
        libc::REG_R15,
    ];
    let general = &context.uc_mcontext.gregs;
    Registers {
        gpr: ORDER.map(|index| general[index as usize] as u64),
        pc: general[libc::REG_RIP as usize] as u64,
        flags: 0,
    }
}

/// The registers of an interrupted thread.
#[cfg(target_arch = "aarch64")]
pub fn context_registers(context: &libc::ucontext_t) -> Registers {
    let machine = &context.uc_mcontext;
    Registers { x: machine.regs, sp: machine.sp, pc: machine.pc, pstate: machine.pstate }
}
