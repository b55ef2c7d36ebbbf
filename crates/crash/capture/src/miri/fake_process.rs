//! A fake process: a program and a library in memory, as a dynamic linker leaves them, and stacks
//! with frames.

extern crate std;

use std::sync::OnceLock;
use std::vec::Vec;

use coroner_process::elf::{PF_X, PT_DYNAMIC, PT_LOAD, PT_NOTE};
use coroner_process::registers::Registers;

use super::fake_kernel::{PAGE, map, set_auxiliary};

/// An unmapped address.
pub(crate) const FAULT_ADDRESS: u64 = 0x18;

/// Offsets of an image's code, of its build ID note, and of its dynamic section.
const TEXT: usize = PAGE;
const NOTE: usize = 0x300;
const DYNAMIC: usize = 0x400;

/// The fake process. See the module.
pub(crate) struct Process {
    program: usize,
    library: usize,
}

/// Returns the process, which is created once.
pub(crate) fn process() -> &'static Process {
    static PROCESS: OnceLock<Process> = OnceLock::new();
    PROCESS.get_or_init(Process::new)
}

fn put(at: usize, words: &[u64]) {
    let to = std::ptr::with_exposed_provenance_mut::<u64>(at);
    // SAFETY: this process's own mapping, with room for them.
    unsafe { to.copy_from_nonoverlapping(words.as_ptr(), words.len()) };
}

impl Process {
    fn new() -> Process {
        let debug = map(PAGE, "rw-p", "");
        let program = image(super::fake_kernel::PROGRAM, debug);
        let library = image("/fake/library.so", 0);
        let (first, second, name) = (debug + 0x100, debug + 0x200, debug + 0x300);
        // struct r_debug; then two of struct link_map.
        put(debug, &[1, first as u64, 0, 0, 0]);
        let dynamic = |image: usize| (image + DYNAMIC) as u64;
        // The program's own name is empty.
        put(first, &[program as u64, (name + 0x40) as u64, dynamic(program), second as u64, 0]);
        put(second, &[library as u64, name as u64, dynamic(library), 0, first as u64]);
        let words = b"/fake/library.so".chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        put(name, &words.collect::<Vec<_>>());
        for (entry, value) in [(libc::AT_PHDR, program + 64), (libc::AT_PHNUM, 3), (libc::AT_ENTRY, program + TEXT)] {
            set_auxiliary(entry, value as u64);
        }
        set_auxiliary(libc::AT_PAGESZ, PAGE as u64);
        // The dynamic linker's headers can't be read: it is not listed as an image, at any refresh.
        set_auxiliary(libc::AT_BASE, 0x10);
        Process { program, library }
    }

    /// Creates a stack, and returns the registers of a thread in the library, called from the
    /// program.
    pub(crate) fn thread(&self) -> Registers {
        let stack = map(4 * PAGE, "rw-p", "");
        let (sp, fp, end) = (stack + 2 * PAGE, stack + 2 * PAGE + 0x40, stack + 3 * PAGE);
        put(fp, &[end as u64, (self.program + TEXT + 0x200) as u64]);
        put(end, &[0, 0]);
        let mut registers = Registers { pc: (self.library + TEXT + 0x100) as u64, ..Registers::default() };
        (registers.gpr[6], registers.gpr[7]) = (fp as u64, sp as u64);
        registers
    }
}

/// Maps an image of two pages: its headers, and code.
fn image(path: &str, debug: usize) -> usize {
    let at = map(2 * PAGE, "r-xp", path);
    // Elf64_Ehdr: entry, headers at 64, section headers nowhere; 3 headers of 56 bytes.
    let magic = u64::from_le_bytes([0x7f, b'E', b'L', b'F', 2, 1, 1, 0]);
    put(at, &[magic, 0, 3 | 62 << 16 | 1 << 32, TEXT as u64, 64, 0, 64 << 32 | 56 << 48, 3 | 64 << 16]);
    let header = |kind: u32, flags: u32, address: usize, size: usize, align: u64| {
        let (address, size) = (address as u64, size as u64);
        [u64::from(kind) | u64::from(flags) << 32, address, address, address, size, size, align]
    };
    put(at + 64, &header(PT_LOAD, PF_X | 4, 0, 2 * PAGE, PAGE as u64));
    put(at + 64 + 56, &header(PT_DYNAMIC, 4, DYNAMIC, 32, 8));
    put(at + 64 + 112, &header(PT_NOTE, 4, NOTE, 32, 4));
    // The build ID: 16 bytes that identify the image.
    put(at + NOTE, &[4 | 16 << 32, 3 | u64::from(u32::from_le_bytes(*b"GNU\0")) << 32, path.len() as u64, !0]);
    put(at + DYNAMIC, &[21, debug as u64, 0, 0]);
    // push rbp; mov rbp, rsp; nop …; call; and after it: pop rbp; ret. Twice: for the thread's
    // current frame, and for its caller.
    let code = [[0x55, 0x48, 0x89, 0xe5, 0x90, 0x90, 0x90, 0x90], [0x90, 0x90, 0x90, 0xe8, 0, 0, 0, 0]];
    let code = [code[0], code[1], [0x5d, 0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc]].map(u64::from_le_bytes);
    put(at + TEXT + 0xf0, &code);
    put(at + TEXT + 0x1f0, &code);
    at
}
