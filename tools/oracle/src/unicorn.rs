//! The part of the emulator's C API that the oracle uses, loaded at run time.
//!
//! Source: `unicorn/unicorn.h`, version 2. The numbers of registers, hooks and errors are those in
//! the headers of the version pinned by [`toolbox::tools::UNICORN`]; the emulator has no stable way
//! to query them by name.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    path::Path,
    ptr,
};

use anyhow::{Context, bail};
use coroner_process::registers::Arch;

const ARCH_ARM64: c_int = 2;
const ARCH_X86: c_int = 4;
const MODE_ARM: c_int = 0;
const MODE_64: c_int = 1 << 3;
const HOOK_CODE: c_int = 1 << 2;
/// `UC_CTL_WRITE(UC_CTL_CPU_MODEL, 1)`
const SET_CPU_MODEL: c_int = 7 | 1 << 26 | 1 << 30;
/// All features that the emulator supports: the compilers' default for macOS is Apple's M1.
const CPU_ARM64_MAX: c_int = 3;
const PROTECTION_READ: u32 = 1;
const PROTECTION_WRITE: u32 = 2;
const PROTECTION_EXECUTE: u32 = 4;

/// x86_64's registers in DWARF's order, as in `X86_64Registers::gpr`, then the pc.
///
/// rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 … r15, rip.
pub(super) const X86_64_IDS: [c_int; 17] = [35, 40, 38, 37, 43, 39, 36, 44, 106, 107, 108, 109, 110, 111, 112, 113, 41];

/// x0 … x28, fp, lr, sp, pc.
pub(super) const ARM64_IDS: [c_int; 33] = {
    let mut ids = [0; 33];
    let mut i = 0;
    while i < 29 {
        ids[i] = 199 + i as c_int;
        i += 1;
    }
    ids[29] = 1;
    ids[30] = 2;
    ids[31] = 4;
    ids[32] = 260;
    ids
};

type Engine = *mut c_void;
type OnInstruction = unsafe extern "C" fn(Engine, u64, u32, *mut c_void);

/// The functions of the shared library.
///
/// They are valid while `_library` is loaded, which is as long as this lives.
pub(super) struct Unicorn {
    open: unsafe extern "C" fn(c_int, c_int, *mut Engine) -> c_int,
    close: unsafe extern "C" fn(Engine) -> c_int,
    control: unsafe extern "C" fn(Engine, c_int, ...) -> c_int,
    map: unsafe extern "C" fn(Engine, u64, u64, u32, *mut c_void) -> c_int,
    read: unsafe extern "C" fn(Engine, *const c_int, *const *mut c_void, c_int) -> c_int,
    write: unsafe extern "C" fn(Engine, *const c_int, *const *const c_void, c_int) -> c_int,
    hook: unsafe extern "C" fn(Engine, *mut usize, c_int, *mut c_void, *mut c_void, u64, u64, ...) -> c_int,
    start: unsafe extern "C" fn(Engine, u64, u64, u64, usize) -> c_int,
    stop: unsafe extern "C" fn(Engine) -> c_int,
    describe: unsafe extern "C" fn(c_int) -> *const c_char,
    _library: libloading::Library,
}

impl Unicorn {
    /// Loads the shared library at `path`.
    ///
    /// # Errors
    /// An error if the library can't be loaded or lacks a function.
    pub(super) fn load(path: &Path) -> anyhow::Result<Unicorn> {
        // SAFETY: the library is unicorn at the pinned version; loading it runs its constructors,
        // which only fill tables.
        let library =
            unsafe { libloading::Library::new(path) }.with_context(|| format!("loading {}", path.display()))?;
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the fields have the types of unicorn.h; the pointer lives as long as the
                // library.
                *unsafe { library.get($name) }?
            };
        }
        Ok(Unicorn {
            open: function!(b"uc_open"),
            close: function!(b"uc_close"),
            control: function!(b"uc_ctl"),
            map: function!(b"uc_mem_map_ptr"),
            read: function!(b"uc_reg_read_batch"),
            write: function!(b"uc_reg_write_batch"),
            hook: function!(b"uc_hook_add"),
            start: function!(b"uc_emu_start"),
            stop: function!(b"uc_emu_stop"),
            describe: function!(b"uc_strerror"),
            _library: library,
        })
    }

    fn check(&self, code: c_int, what: &str) -> anyhow::Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: uc_strerror returns a static string for every number.
        let text = unsafe { CStr::from_ptr((self.describe)(code)) };
        bail!("emulator: {what}: {}", text.to_string_lossy())
    }
}

/// An emulated CPU.
pub(super) struct Cpu<'u> {
    unicorn: &'u Unicorn,
    engine: Engine,
}

impl<'u> Cpu<'u> {
    /// Creates a CPU of this architecture without memory.
    ///
    /// # Errors
    /// The emulator's error.
    pub(super) fn new(unicorn: &'u Unicorn, arch: Arch) -> anyhow::Result<Cpu<'u>> {
        let (number, mode) = match arch {
            Arch::X86_64 => (ARCH_X86, MODE_64),
            Arch::Aarch64 => (ARCH_ARM64, MODE_ARM),
        };
        let mut engine = ptr::null_mut();
        // SAFETY: `engine` is valid for writing the handle.
        unicorn.check(unsafe { (unicorn.open)(number, mode, &raw mut engine) }, "opening")?;
        let cpu = Cpu { unicorn, engine };
        if arch == Arch::Aarch64 {
            // SAFETY: this control takes one int.
            let code = unsafe { (unicorn.control)(cpu.engine, SET_CPU_MODEL, CPU_ARM64_MAX) };
            unicorn.check(code, "setting the CPU model")?;
        }
        Ok(cpu)
    }

    /// Maps host memory into the guest's at `address`.
    ///
    /// # Safety
    /// `host` must be valid for `length` bytes, aligned to 4096, and stay so while the CPU lives.
    /// `length` must be a multiple of 4096.
    ///
    /// # Errors
    /// The emulator's error, for example for overlapping ranges.
    pub(super) unsafe fn map(
        &self,
        address: u64,
        length: usize,
        executable: bool,
        host: *mut u8,
    ) -> anyhow::Result<()> {
        let protection = PROTECTION_READ | PROTECTION_WRITE | if executable { PROTECTION_EXECUTE } else { 0 };
        // SAFETY: the caller guarantees the host memory's validity.
        let code = unsafe { (self.unicorn.map)(self.engine, address, length as u64, protection, host.cast()) };
        self.unicorn.check(code, "mapping memory")
    }

    /// Reads the registers with these numbers.
    pub(super) fn read<const N: usize>(&self, ids: &[c_int; N]) -> [u64; N] {
        let mut values = [0u64; N];
        let places: [*mut c_void; N] = std::array::from_fn(|i| (&raw mut values[i]).cast());
        // SAFETY: every element is a 64-bit word, and every id that the oracle uses names a 64-bit
        // register.
        let code = unsafe { (self.unicorn.read)(self.engine, ids.as_ptr(), places.as_ptr(), N as c_int) };
        debug_assert_eq!(code, 0, "the register numbers are constants");
        values
    }

    /// Sets the registers of those numbers.
    pub(super) fn write<const N: usize>(&self, ids: &[c_int; N], values: &[u64; N]) {
        let places: [*const c_void; N] = std::array::from_fn(|i| (&raw const values[i]).cast());
        // SAFETY: as in `read`.
        let code = unsafe { (self.unicorn.write)(self.engine, ids.as_ptr(), places.as_ptr(), N as c_int) };
        debug_assert_eq!(code, 0, "the register numbers are constants");
    }

    /// Ends [`Self::run`] after this instruction; for use inside its callback.
    pub(super) fn stop(&self) {
        // SAFETY: the engine is open.
        unsafe { (self.unicorn.stop)(self.engine) };
    }

    /// Runs from `pc` until the callback stops it.
    ///
    /// Calls `before` before every instruction, with its address and length.
    ///
    /// # Errors
    /// The emulator's error: an unknown instruction, unmapped memory.
    pub(super) fn run<F: FnMut(&Cpu<'u>, u64, u32)>(&self, pc: u64, mut before: F) -> anyhow::Result<()> {
        struct Call<'c, 'u, F> {
            cpu: &'c Cpu<'u>,
            before: &'c mut F,
        }
        unsafe extern "C" fn trampoline<'u, F: FnMut(&Cpu<'u>, u64, u32)>(
            _: Engine,
            pc: u64,
            length: u32,
            call: *mut c_void,
        ) {
            // SAFETY: `run` passes its own `Call` of the same types, and outlives the emulation.
            let call = unsafe { &mut *call.cast::<Call<'_, 'u, F>>() };
            (call.before)(call.cpu, pc, length);
        }
        let mut call = Call { cpu: self, before: &mut before };
        let mut hook = 0;
        let callback: OnInstruction = trampoline::<F>;
        // A range whose start is after its end means "everywhere".
        // SAFETY: `callback` has the type that HOOK_CODE wants, and `call` lives until after
        // `start` returns.
        let code = unsafe {
            (self.unicorn.hook)(
                self.engine,
                &raw mut hook,
                HOOK_CODE,
                callback as *mut c_void,
                (&raw mut call).cast(),
                1,
                0,
            )
        };
        self.unicorn.check(code, "adding a hook")?;
        // SAFETY: the engine is open; guest memory was vouched for in `map`.
        let code = unsafe { (self.unicorn.start)(self.engine, pc, 0, 0, 0) };
        self.unicorn.check(code, "running")
    }
}

impl Drop for Cpu<'_> {
    fn drop(&mut self) {
        // SAFETY: the engine is open and isn't used again.
        unsafe { (self.unicorn.close)(self.engine) };
    }
}
