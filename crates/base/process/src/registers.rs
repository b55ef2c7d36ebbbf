//! The general registers of a thread, as plain data, for every architecture that Coroner reads.
//!
//! Both register sets exist on every host: an iPhone's report is unwound and shown on a Linux
//! desktop.

/// A machine architecture. The numbers are part of the report format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Arch {
    /// AMD64, System V ABI.
    X86_64 = 1,
    /// AArch64 little endian, AAPCS64 (Apple's arm64 and arm64e included).
    Aarch64 = 2,
}

impl Arch {
    /// The architecture that this code was compiled for; x86_64 if it is neither.
    #[cfg(not(target_arch = "aarch64"))]
    pub const NATIVE: Arch = Arch::X86_64;
    /// The architecture that this code was compiled for.
    #[cfg(target_arch = "aarch64")]
    pub const NATIVE: Arch = Arch::Aarch64;

    /// The architecture of the running process, if it is supported.
    pub const OF_THIS_PROCESS: Option<Arch> =
        if cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) { Some(Arch::NATIVE) } else { None };

    /// Returns the architecture with this number in a report.
    pub const fn from_number(number: u8) -> Option<Arch> {
        match number {
            1 => Some(Arch::X86_64),
            2 => Some(Arch::Aarch64),
            _ => None,
        }
    }

    /// Returns the usual name: `x86_64` or `arm64`.
    pub const fn name(self) -> &'static str {
        match self {
            Arch::X86_64 => "x86_64",
            Arch::Aarch64 => "arm64",
        }
    }
}

/// The general registers of an x86_64 thread.
///
/// `gpr` is in the order of the DWARF numbers (System V AMD64 psABI, figure 3.36), which differs
/// from the order of the instruction encoding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct X86_64Registers {
    /// rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 … r15.
    pub gpr: [u64; 16],
    /// The instruction pointer, rip.
    pub pc: u64,
    /// rflags.
    pub flags: u64,
}

/// Names of [`X86_64Registers::gpr`], by index.
pub const X86_64_NAMES: [&str; 16] =
    ["rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"];

/// The general registers of an arm64 thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Aarch64Registers {
    /// x0 … x30, with pointer authentication codes if any.
    ///
    /// x29 is the frame pointer and x30 the link register.
    pub x: [u64; 31],
    /// The stack pointer.
    pub sp: u64,
    /// The program counter.
    pub pc: u64,
    /// The process state (PSTATE / CPSR).
    pub pstate: u64,
}

/// Names of [`Aarch64Registers::x`], by index.
pub const AARCH64_NAMES: [&str; 31] = [
    "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "x16", "x17",
    "x18", "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "fp", "lr",
];

/// The registers of [`Arch::NATIVE`].
#[cfg(not(target_arch = "aarch64"))]
pub type Registers = X86_64Registers;
/// The registers of [`Arch::NATIVE`].
#[cfg(target_arch = "aarch64")]
pub type Registers = Aarch64Registers;

impl X86_64Registers {
    /// Returns the general registers.
    pub const fn general(&self) -> &[u64] {
        &self.gpr
    }

    /// Returns the stack pointer, rsp.
    pub const fn sp(&self) -> u64 {
        self.gpr[7]
    }

    /// Returns the frame pointer, rbp.
    pub const fn fp(&self) -> u64 {
        self.gpr[6]
    }
}

impl Aarch64Registers {
    /// Returns the general registers.
    pub const fn general(&self) -> &[u64] {
        &self.x
    }

    /// Returns the stack pointer.
    pub const fn sp(&self) -> u64 {
        self.sp
    }

    /// Returns the frame pointer, x29.
    pub const fn fp(&self) -> u64 {
        self.x[29]
    }

    /// Returns the link register, x30, with its pointer authentication code if it has one.
    pub const fn lr(&self) -> u64 {
        self.x[30]
    }
}
