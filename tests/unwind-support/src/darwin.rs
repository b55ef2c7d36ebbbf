//! Darwin: dyld's list of images, their load commands, the kernel's `ucontext_t`.

use coroner_process::registers::Registers;
use coroner_unwind::{AddressRange, Image, ImageFormat};

unsafe extern "C" {
    // <mach-o/dyld.h>
    fn _dyld_image_count() -> u32;
    fn _dyld_get_image_header(index: u32) -> *const u8;
    fn _dyld_get_image_vmaddr_slide(index: u32) -> isize;
}

/// `sizeof(struct mach_header_64)`: the load commands follow it.
const HEADER: usize = 32;
/// `LC_SEGMENT_64`.
const SEGMENT: u32 = 0x19;
/// `sizeof(struct segment_command_64)`, and of each `struct section_64` that follows it.
const SEGMENT_COMMAND: usize = 72;
const SECTION: usize = 80;
/// `VM_PROT_EXECUTE`.
const EXECUTE: u32 = 4;

/// A number of a load command of a loaded image.
fn number<T: Copy>(at: *const u8, offset: usize) -> T {
    // SAFETY: the callers stay inside the load commands of an image that dyld lists.
    unsafe { at.add(offset).cast::<T>().read_unaligned() }
}

/// A name of sixteen bytes, zero-terminated when shorter.
fn name(at: *const u8, offset: usize) -> [u8; 16] {
    number(at, offset)
}

/// `text` as a name of sixteen bytes.
fn padded(text: &str) -> [u8; 16] {
    let mut name = [0; 16];
    name[..text.len()].copy_from_slice(text.as_bytes());
    name
}

/// The images, as dyld lists them.
pub(crate) fn images() -> Vec<Image> {
    // SAFETY: no preconditions.
    let count = unsafe { _dyld_image_count() };
    (0..count)
        .map(|index| {
            // SAFETY: no test of this program loads or unloads an image.
            let (header, slide) =
                unsafe { (_dyld_get_image_header(index), _dyld_get_image_vmaddr_slide(index) as u64) };
            image(header, slide)
        })
        .collect()
}

fn image(header: *const u8, slide: u64) -> Image {
    let mut image = Image { format: ImageFormat::MachO, base: header as u64, bias: slide, ..Image::default() };
    let range = |command: *const u8, start: usize| {
        let start_address = number::<u64>(command, start).wrapping_add(slide);
        AddressRange { start: start_address, end: start_address + number::<u64>(command, start + 8) }
    };
    let mut command = header.wrapping_add(HEADER);
    for _ in 0..number::<u32>(header, 16) {
        if number::<u32>(command, 0) == SEGMENT {
            if number::<u32>(command, 60) & EXECUTE != 0 {
                image.text = range(command, 24);
            }
            for index in 0..number::<u32>(command, 64) as usize {
                let section = command.wrapping_add(SEGMENT_COMMAND + index * SECTION);
                if name(section, 16) != padded("__TEXT") {
                    continue;
                }
                let place = match name(section, 0) {
                    name if name == padded("__unwind_info") => &mut image.unwind_info,
                    name if name == padded("__eh_frame") => &mut image.eh_frame,
                    name if name == padded("__stubs") => &mut image.stubs,
                    name if name == padded("__stub_helper") => &mut image.stub_helper,
                    name if name == padded("__text") => {
                        image.text_section = range(section, 32).start;
                        continue;
                    }
                    _ => continue,
                };
                *place = range(section, 32);
            }
        }
        command = command.wrapping_add(number::<u32>(command, 4) as usize);
    }
    image
}

/// Returns the executable ranges: the images' text segments. These tests have no other code.
pub(crate) fn executable(images: &[Image]) -> Vec<AddressRange> {
    images.iter().map(|image| image.text).collect()
}

/// The registers of an interrupted thread.
#[cfg(target_arch = "x86_64")]
pub fn context_registers(context: &libc::ucontext_t) -> Registers {
    // SAFETY: the kernel gives a machine context with the context.
    let state = unsafe { &(*context.uc_mcontext).__ss };
    Registers {
        gpr: [
            state.__rax,
            state.__rdx,
            state.__rcx,
            state.__rbx,
            state.__rsi,
            state.__rdi,
            state.__rbp,
            state.__rsp,
            state.__r8,
            state.__r9,
            state.__r10,
            state.__r11,
            state.__r12,
            state.__r13,
            state.__r14,
            state.__r15,
        ],
        pc: state.__rip,
        flags: state.__rflags,
    }
}

/// The registers of an interrupted thread.
#[cfg(target_arch = "aarch64")]
pub fn context_registers(context: &libc::ucontext_t) -> Registers {
    // SAFETY: the kernel gives a machine context with the context.
    let state = unsafe { &(*context.uc_mcontext).__ss };
    let mut x = [0; 31];
    x[..29].copy_from_slice(&state.__x);
    (x[29], x[30]) = (state.__fp, state.__lr);
    Registers { x, sp: state.__sp, pc: state.__pc, pstate: state.__cpsr.into() }
}
