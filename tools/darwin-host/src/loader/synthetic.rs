//! The image that represents the system's libraries: `/usr/lib/system/libsystem_kernel.dylib`.
//!
//! Every import is bound to a stub in it with the import's name, so that a thread in a system call
//! appears in a function of an image with a UUID, a symbol table and unwind information, as on
//! macOS. A stub is 48 bytes: code that loads the stub's own address into a scratch register and
//! jumps to the gate; a system call instruction and a return, which are never executed; the gate's
//! address at +32, and the target's at +40. The part of a name after an `@` is not part of the
//! symbol. Two pieces of code precede the stubs: one that calls the program's initializers and
//! destructors, with a frame record that ends the stack; and `_sigtramp`, which calls a signal
//! handler and then traps into the host to return from it. For the start of threads and `main` see
//! [`super::system_images`].
//!
//! Encodings: <mach-o/compact_unwind_encoding.h>; call frame information of `_sigtramp`: DWARF 5
//! §6.4, with the augmentation `S`, and registers found through the mcontext, as in Apple's
//! libplatform.

use std::{
    collections::HashMap,
    mem::offset_of,
    sync::atomic::{AtomicUsize, Ordering},
};

use super::{image::Image, macho};
use crate::host::{
    gate::{self, ThreadState},
    kernel::pages,
    signals::layout::MachineContext,
};

pub(crate) const PATH: &str = "/usr/lib/system/libsystem_kernel.dylib";
const STUB: usize = 48;
/// A blocked thread's offset in a stub: after the system call instruction.
pub(crate) const IN_CALL: usize = if cfg!(target_arch = "x86_64") { 15 } else { 16 };
/// The offset in a stub of its target's address, which the gates use.
const TARGET: usize = 40;
const TEXT_START: usize = 0x1000;
/// Number of stubs for unsupported imports, which are created when a program requests them.
const SPARE: usize = 2048;

static BASE: AtomicUsize = AtomicUsize::new(0);
static START: AtomicUsize = AtomicUsize::new(0);
static TRAMPOLINE: AtomicUsize = AtomicUsize::new(0);
static GATE_STUB: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);

/// Returns the code that calls the program's initializers and destructors.
pub(crate) fn start_code() -> usize {
    START.load(Ordering::Relaxed)
}

/// Returns the address of `_sigtramp`.
pub(crate) fn trampoline() -> usize {
    TRAMPOLINE.load(Ordering::Relaxed)
}

/// Returns the location shown for a thread in the gate itself: a frameless function.
pub(crate) fn gate_stub() -> usize {
    GATE_STUB.load(Ordering::Relaxed)
}

/// Whether `pc` is directly after (x86_64) or at (arm64) the trap that ends `_sigtramp`.
pub(crate) fn is_return_trap(pc: usize) -> bool {
    pc == trampoline() + if cfg!(target_arch = "x86_64") { 3 } else { 4 }
}

/// Whether the address is in this image.
pub(crate) fn contains(address: usize) -> bool {
    let base = BASE.load(Ordering::Relaxed);
    base != 0 && (base..END.load(Ordering::Relaxed)).contains(&address)
}

/// Calls the function and jumps to the host.
#[cfg(target_arch = "x86_64")]
fn start_bytes() -> Vec<u8> {
    // call rax; jmp [rip + 0]; .quad left
    let mut code = vec![0xff, 0xd0, 0xff, 0x25, 0, 0, 0, 0];
    code.extend_from_slice(&gate::left_address().to_le_bytes());
    code
}

#[cfg(target_arch = "aarch64")]
fn start_bytes() -> Vec<u8> {
    // blr x16; ldr x16, #8; br x16; nop; .quad left
    let mut code = Vec::new();
    for word in [0xd63f_0200u32, 0x5800_0070, 0xd61f_0200, 0xd503_201f] {
        code.extend_from_slice(&word.to_le_bytes());
    }
    code.extend_from_slice(&gate::left_address().to_le_bytes());
    code
}

/// `_sigtramp`: calls the handler and traps.
#[cfg(target_arch = "x86_64")]
const TRAMPOLINE_BYTES: &[u8] = &[0xff, 0xd0, 0xcc]; // call rax; int3
#[cfg(target_arch = "aarch64")]
const TRAMPOLINE_BYTES: &[u8] = &[0x00, 0x02, 0x3f, 0xd6, 0x20, 0xb4, 0x38, 0xd4]; // blr x16; brk #0xc5a1

#[cfg(target_arch = "x86_64")]
fn stub_bytes() -> [u8; 20] {
    // lea r11, [rip - 7]; jmp [rip + 19]; syscall; ret
    [0x4c, 0x8d, 0x1d, 0xf9, 0xff, 0xff, 0xff, 0xff, 0x25, 19, 0, 0, 0, 0x0f, 0x05, 0xc3, 0xcc, 0xcc, 0xcc, 0xcc]
}

#[cfg(target_arch = "aarch64")]
fn stub_bytes() -> [u8; 20] {
    // adr x16, 0; ldr x17, #28; br x17; svc #0x80; ret
    let mut bytes = [0; 20];
    let words = [0x1000_0010u32, 0x5800_00f1, 0xd61f_0220, 0xd400_1001, 0xd65f_03c0];
    for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Compact encodings: a frame record; only the return address (x86_64: one word of stack).
///
/// See DWARF.
pub(super) const ENCODING_FRAME: u32 = if cfg!(target_arch = "x86_64") { 0x0100_0000 } else { 0x0400_0000 };
const ENCODING_FRAMELESS: u32 = if cfg!(target_arch = "x86_64") { 0x0201_0000 } else { 0x0200_0000 };
const ENCODING_DWARF: u32 = if cfg!(target_arch = "x86_64") { 0x0400_0000 } else { 0x0300_0000 };

/// The image under construction, later used to create stubs for unsupported imports.
pub(crate) struct Synthetic {
    base: usize,
    next_stub: usize,
    stubs_end: usize,
    symbols: usize,
    symbol_count: usize,
    strings: usize,
    strings_used: usize,
    strings_size: usize,
    by_name: HashMap<String, usize>,
}

/// Appends little-endian values.
pub(super) struct Bytes(pub(super) Vec<u8>);

impl Bytes {
    fn words(&mut self, words: &[u32]) -> &mut Self {
        for word in words {
            self.0.extend_from_slice(&word.to_le_bytes());
        }
        self
    }
    fn longs(&mut self, longs: &[usize]) -> &mut Self {
        for long in longs {
            self.0.extend_from_slice(&long.to_le_bytes());
        }
        self
    }
    fn name(&mut self, name: &str) -> &mut Self {
        let mut field = [0; 16];
        field[..name.len()].copy_from_slice(name.as_bytes());
        self.0.extend_from_slice(&field);
        self
    }
    fn text(&mut self, text: &str) -> &mut Self {
        self.0.extend_from_slice(text.as_bytes());
        self.0.push(0);
        while !self.0.len().is_multiple_of(8) {
            self.0.push(0);
        }
        self
    }
}

impl Synthetic {
    /// Creates the image, with a stub for each function.
    ///
    /// `functions` are names with Darwin's underscore, and addresses.
    pub(crate) fn create(functions: &[(String, usize)]) -> (Synthetic, Image) {
        let capacity = functions.len() + SPARE + 3;
        let text_size = pages::round(TEXT_START + 0x100 + capacity * STUB + 0x1000);
        let strings_size = capacity * 48;
        let linkedit_size = pages::round(capacity * 16 + strings_size);
        let base = pages::map(text_size + linkedit_size) as usize;
        assert!(base != 0, "no memory for the synthetic image");

        let code = base + TEXT_START;
        let trampoline = code + 0x40;
        let gate_stub = code + 0x60;
        let stubs = code + 0x100;
        let unwind = base + text_size - 0x1000;
        let frames = unwind + 0x200;
        let (symbols, strings) = (base + text_size, base + text_size + capacity * 16);
        put(code, &start_bytes());
        put(trampoline, TRAMPOLINE_BYTES);
        put(gate_stub, &stub_bytes());

        let call_frame = call_frame_information(trampoline, frames);
        let unwind_info = unwind_info(
            &[
                ((code - base) as u32, ENCODING_FRAME),
                ((trampoline - base) as u32, ENCODING_DWARF | call_frame.1),
                ((gate_stub - base) as u32, ENCODING_FRAMELESS),
            ],
            (unwind - base) as u32,
        );
        put(unwind, &unwind_info);
        put(frames, &call_frame.0);
        let sections = [
            ("__text", code, text_size - TEXT_START - 0x1000, 0x8000_0400),
            ("__unwind_info", unwind, unwind_info.len(), 0),
            ("__eh_frame", frames, call_frame.0.len(), 0),
        ];

        BASE.store(base, Ordering::Relaxed);
        START.store(code, Ordering::Relaxed);
        TRAMPOLINE.store(trampoline, Ordering::Relaxed);
        GATE_STUB.store(gate_stub, Ordering::Relaxed);
        END.store(base + text_size, Ordering::Relaxed);

        let mut synthetic = Synthetic {
            base,
            next_stub: stubs,
            stubs_end: unwind,
            symbols,
            symbol_count: 0,
            strings,
            strings_used: 1,
            strings_size,
            by_name: HashMap::new(),
        };
        synthetic.symbol("_host_start", code);
        synthetic.symbol("__sigtramp", trampoline);
        synthetic.symbol("_host_gate", gate_stub);
        for (name, target) in functions {
            synthetic.stub(name, *target);
        }
        let symbols = (symbols, synthetic.symbol_count, strings, strings_size);
        let image = header(base, PATH, *b"BLDC", &sections, (text_size, linkedit_size), symbols);
        protect(base, text_size);
        (synthetic, image)
    }

    /// Returns the stub with this name.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// Returns a stub's name, for messages.
    pub(crate) fn name_of(&self, stub: usize) -> &str {
        self.by_name.iter().find(|&(_, &at)| at == stub).map_or("?", |(name, _)| name)
    }

    /// Creates a stub for an import that the host doesn't support; its target refuses.
    pub(crate) fn unknown(&mut self, name: &str, target: usize) -> usize {
        let (start, size) = (self.base, END.load(Ordering::Relaxed) - self.base);
        // SAFETY: the host's own pages; nothing else runs from them while a program is loaded or
        // calls dlsym.
        unsafe {
            libc::mprotect(start as *mut libc::c_void, size, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC)
        };
        let stub = self.stub(name, target);
        protect(start, size);
        stub
    }

    /// Changes the target of the stubs with these names (with Darwin's underscore).
    pub(crate) fn retarget<'n>(&mut self, names: impl Iterator<Item = &'n String>, target: usize) {
        let (start, size) = (self.base, END.load(Ordering::Relaxed) - self.base);
        // SAFETY: the host's own pages; stubs stay executable, and a target is one aligned word.
        unsafe {
            libc::mprotect(start as *mut libc::c_void, size, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC)
        };
        for stub in names.filter_map(|name| self.find(name)) {
            put(stub + TARGET, &target.to_le_bytes());
        }
        protect(start, size);
    }

    fn stub(&mut self, name: &str, target: usize) -> usize {
        let at = self.next_stub;
        assert!(at + STUB <= self.stubs_end, "too many unknown imports");
        put(at, &stub_bytes());
        put(at + 32, &gate::gate_address().to_le_bytes());
        put(at + TARGET, &target.to_le_bytes());
        self.next_stub += STUB;
        self.symbol(name.split_once('@').map_or(name, |(name, _)| name), at);
        self.by_name.insert(name.to_owned(), at);
        at
    }

    fn symbol(&mut self, name: &str, address: usize) {
        if self.strings_used + name.len() + 1 > self.strings_size {
            return;
        }
        let entry = self.symbols + self.symbol_count * 16;
        put(entry, &(self.strings_used as u32).to_le_bytes());
        put(entry + 4, &[0xf, 1, 0, 0]); // N_SECT | N_EXT, section 1
        put(entry + 8, &(address - self.base).to_le_bytes());
        put(self.strings + self.strings_used, name.as_bytes());
        self.strings_used += name.len() + 1;
        self.symbol_count += 1;
    }
}

/// Writes the header and load commands of an image created in memory at `base`.
///
/// Returns it for the loader.
///
/// `sections` (name, address, size, flags) are those of `__TEXT`; `symbols` are the address of
/// `nlist_64` entries, their count, the address of the strings and their size, in `__LINKEDIT`,
/// which follows it.
pub(super) fn header(
    base: usize,
    path: &str,
    uuid: [u8; 4],
    sections: &[(&str, usize, usize, u32)],
    (text_size, linkedit_size): (usize, usize),
    symbols: (usize, usize, usize, usize),
) -> Image {
    let mut commands = Bytes(Vec::new());
    let relative = |address: usize| address - base;
    let count = sections.len() as u32;
    commands.words(&[0x19, 72 + count * 80]).name("__TEXT").longs(&[0, text_size, 0, text_size]);
    commands.words(&[5, 5, count, 0]);
    for &(name, address, size, flags) in sections {
        commands.name(name).name("__TEXT").longs(&[relative(address), size]);
        commands.words(&[relative(address) as u32, 4, 0, 0, flags, 0, 0, 0]);
    }
    commands.words(&[0x19, 72]).name("__LINKEDIT").longs(&[text_size, linkedit_size, text_size, linkedit_size]);
    commands.words(&[1, 1, 0, 0]);
    let uuid = u32::from_le_bytes(uuid);
    commands.words(&[0x1b, 24, uuid, 0x4c45_4e52, 0x4453_5943, u32::from(cfg!(target_arch = "aarch64"))]);
    // LC_BUILD_VERSION: macOS 11.0, no tools. LC_ID_DYLIB: name, time, versions.
    commands.words(&[0x32, 24, 1, 0x000b_0000, 0x000b_0000, 0]);
    commands.words(&[0xd, (24 + (path.len() + 8) / 8 * 8) as u32, 24, 2, 0x1_0000, 0x1_0000]).text(path);
    let (table, symbol_count, strings, strings_size) = symbols;
    commands.words(&[2, 24, relative(table) as u32, symbol_count as u32]);
    commands.words(&[relative(strings) as u32, strings_size as u32]);
    let mut header = Bytes(Vec::new());
    // flags: MH_DYLDLINK | MH_TWOLEVEL. MH_DYLIB_IN_CACHE is not set: it is a separate image.
    let (size, subtype) = (commands.0.len() as u32, if cfg!(target_arch = "x86_64") { 3 } else { 0 });
    header.words(&[macho::MH_MAGIC_64, macho::CPU_TYPE, subtype, macho::MH_DYLIB, 6, size, 0x84, 0]);
    header.0.extend_from_slice(&commands.0);
    put(base, &header.0);
    let section = |&(name, address, size, _): &(&str, usize, usize, u32)| macho::Section {
        segment: "__TEXT".into(),
        name: name.into(),
        address: relative(address) as u64,
        size: size as u64,
        kind: 0,
    };
    Image {
        path: std::ffi::CString::new(path).unwrap_or_default(),
        header: base,
        slide: base,
        range: (base, base + text_size + linkedit_size),
        text: (base, base + text_size),
        sections: sections.iter().map(section).collect(),
        entry: None,
        symbols,
        references: 1,
        initialised: true,
    }
}

pub(super) fn put(at: usize, bytes: &[u8]) {
    // SAFETY: only used on the image's own memory, whose parts are large enough for their contents.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
}

pub(super) fn protect(base: usize, text_size: usize) {
    // SAFETY: our own pages.
    unsafe { libc::mprotect(base as *mut libc::c_void, text_size, libc::PROT_READ | libc::PROT_EXEC) };
}

/// Creates an `__unwind_info` with one regular page.
///
/// `functions` are pairs of a function's offset and its encoding, ascending.
pub(super) fn unwind_info(functions: &[(u32, u32)], end: u32) -> Vec<u8> {
    let mut out = Bytes(Vec::new());
    let index = 28;
    let page = index + 2 * 12;
    // version, common encodings, personalities, index: offsets and counts.
    out.words(&[1, index, 0, index, 0, index, 2]);
    // index entries: function, second-level page, LSDAs; the last is a sentinel.
    out.words(&[functions[0].0, page, page, end, 0, page]);
    // a regular page: kind 2, entries at 8.
    out.words(&[2, 8 | ((functions.len() as u32) << 16)]);
    for &(function, encoding) in functions {
        out.words(&[function, encoding]);
    }
    out.0
}

/// Creates `.eh_frame` for `_sigtramp`: one CIE, one FDE.
///
/// Also returns the FDE's offset, for the compact encoding.
fn call_frame_information(trampoline: usize, at: usize) -> (Vec<u8>, u32) {
    let uleb = |out: &mut Vec<u8>, mut value: usize| loop {
        let byte = (value & 0x7f) as u8;
        value >>= 7;
        out.push(if value == 0 { byte } else { byte | 0x80 });
        if value == 0 {
            break;
        }
    };
    // The frame register (rbx 3, x19 19) points to the signal frame, which starts with the machine
    // context's states.
    let (frame_register, return_register) = if cfg!(target_arch = "x86_64") { (3u8, 16u8) } else { (19, 32) };
    let thread_state = offset_of!(MachineContext, thread);
    let mut registers: Vec<(u8, usize)> = Vec::new();
    #[cfg(target_arch = "x86_64")]
    for (dwarf, offset) in [
        (0, offset_of!(ThreadState, rax)),
        (1, offset_of!(ThreadState, rdx)),
        (2, offset_of!(ThreadState, rcx)),
        (3, offset_of!(ThreadState, rbx)),
        (4, offset_of!(ThreadState, rsi)),
        (5, offset_of!(ThreadState, rdi)),
        (6, offset_of!(ThreadState, rbp)),
        (8, offset_of!(ThreadState, r8)),
        (9, offset_of!(ThreadState, r9)),
        (10, offset_of!(ThreadState, r10)),
        (11, offset_of!(ThreadState, r11)),
        (12, offset_of!(ThreadState, r12)),
        (13, offset_of!(ThreadState, r13)),
        (14, offset_of!(ThreadState, r14)),
        (15, offset_of!(ThreadState, r15)),
        (16, offset_of!(ThreadState, rip)),
    ] {
        registers.push((dwarf, offset));
    }
    #[cfg(target_arch = "aarch64")]
    {
        for index in 0..29u8 {
            registers.push((index, offset_of!(ThreadState, x) + usize::from(index) * 8));
        }
        registers.push((29, offset_of!(ThreadState, fp)));
        registers.push((30, offset_of!(ThreadState, lr)));
        registers.push((32, offset_of!(ThreadState, pc)));
    }
    #[cfg(target_arch = "x86_64")]
    let stack_pointer = offset_of!(ThreadState, rsp);
    #[cfg(target_arch = "aarch64")]
    let stack_pointer = offset_of!(ThreadState, sp);
    let breg = |offset: usize| {
        let mut expression = vec![0x70 + frame_register];
        // SLEB128 of a value below 8192: at most two bytes, with the sign bit clear.
        if offset < 64 {
            expression.push(offset as u8);
        } else {
            expression.push((offset & 0x7f) as u8 | 0x80);
            expression.push((offset >> 7) as u8);
        }
        expression
    };
    let mut instructions = Vec::new();
    // DW_CFA_def_cfa_expression: the interrupted stack pointer.
    let mut cfa = breg(thread_state + stack_pointer);
    cfa.push(0x06); // DW_OP_deref
    instructions.push(0x0f);
    uleb(&mut instructions, cfa.len());
    instructions.extend_from_slice(&cfa);
    for (register, offset) in registers {
        // DW_CFA_expression: the location of the saved register.
        let place = breg(thread_state + offset);
        instructions.push(0x10);
        uleb(&mut instructions, usize::from(register));
        uleb(&mut instructions, place.len());
        instructions.extend_from_slice(&place);
    }

    let mut out = Vec::new();
    // CIE: id 0, version 1, "zRS", code factor 1, data factor -8, return register, pointers
    // absolute 8 bytes.
    let mut cie = vec![0, 0, 0, 0, 1, b'z', b'R', b'S', 0, 1, 0x78, return_register, 1, 0x00];
    while cie.len() % 8 != 4 {
        cie.push(0);
    }
    out.extend_from_slice(&(cie.len() as u32).to_le_bytes());
    out.extend_from_slice(&cie);
    let fde_offset = out.len() as u32;
    let mut fde = (fde_offset + 4).to_le_bytes().to_vec();
    // The range includes the return address after the call and the trap; a debugger looks up the
    // byte before it.
    fde.extend_from_slice(&trampoline.to_le_bytes());
    fde.extend_from_slice(&(TRAMPOLINE_BYTES.len() + 8).to_le_bytes());
    fde.push(0);
    fde.extend_from_slice(&instructions);
    while fde.len() % 8 != 4 {
        fde.push(0);
    }
    out.extend_from_slice(&(fde.len() as u32).to_le_bytes());
    out.extend_from_slice(&fde);
    out.extend_from_slice(&[0; 4]);
    assert!(out.len() < 0xe00 - 0x200, "the call frame information of _sigtramp at {at:#x} is too long");
    (out, fde_offset)
}
