//! Waits of threads in futex(2), or in one of Apple's equivalents ([`darwin`]).
//!
//! Contains the arguments of the call and the memory around its word, from which the crate
//! `coroner-explain` determines who holds the lock.

pub mod darwin;

use crate::memory::Memory;
use crate::registers::{Aarch64Registers, Arch, X86_64Registers};

/// Number of bytes kept before the word.
///
/// That many bytes precede the word in a lock of glibc, musl or bionic, or in a thread descriptor
/// before the word that `pthread_join` waits for.
pub const BEFORE: usize = 16;
/// Number of bytes kept from the word on.
pub const FROM: usize = 32;
/// Maximum number of bytes kept: the size of Apple's mutex.
const ROOM: usize = 64;

/// A waiting system call of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FutexWait {
    /// Address of the word.
    pub address: u64,
    /// The operation, with its flags.
    pub operation: u32,
    /// The value that the word was expected to have.
    pub expected: u32,
    /// Whether the call has a timeout.
    pub timed: bool,
    bytes: [u8; ROOM],
    /// Number of bytes that could be read, and the address of the first.
    length: usize,
    start: u64,
}

/// The system call number of futex(2): `asm/unistd_64.h`, `asm-generic/unistd.h`.
const fn number_of(arch: Arch) -> u32 {
    match arch {
        Arch::X86_64 => 202,
        Arch::Aarch64 => 98,
    }
}

/// The waiting operations of linux/futex.h.
///
/// `FUTEX_WAIT`, `FUTEX_LOCK_PI`, `FUTEX_WAIT_BITSET`, `FUTEX_WAIT_REQUEUE_PI`, `FUTEX_LOCK_PI2`.
const WAITS: [u32; 5] = [0, 6, 9, 11, 13];
/// `FUTEX_PRIVATE_FLAG` and `FUTEX_CLOCK_REALTIME`.
const FLAGS: u32 = 128 | 256;

/// The general registers of a thread in a system call, which hold the call's arguments.
pub trait CallRegisters {
    /// Architecture of the registers.
    const ARCH: Arch;
    /// Returns the first six arguments.
    fn arguments(&self) -> [u64; 6];
}

impl CallRegisters for X86_64Registers {
    const ARCH: Arch = Arch::X86_64;

    fn arguments(&self) -> [u64; 6] {
        let [_, rdx, _, _, rsi, rdi, _, _, r8, r9, r10, ..] = self.gpr;
        [rdi, rsi, rdx, r10, r8, r9]
    }
}

impl CallRegisters for Aarch64Registers {
    const ARCH: Arch = Arch::Aarch64;

    fn arguments(&self) -> [u64; 6] {
        let [x0, x1, x2, x3, x4, x5, ..] = self.x;
        [x0, x1, x2, x3, x4, x5]
    }
}

impl FutexWait {
    /// Returns the futex wait of a thread that is in the system call `number` with these registers.
    ///
    /// `None` if the call doesn't wait for a futex, or if the word can't be read, for example
    /// because arm64 has replaced the address by an error.
    ///
    /// Async-signal-safe if reading `memory` is.
    pub fn of<R: CallRegisters, M: Memory>(registers: &R, number: i64, memory: &mut M) -> Option<FutexWait> {
        let [address, operation, expected, timeout, ..] = registers.arguments();
        let (operation, expected) = (operation as u32, expected as u32);
        if number != i64::from(number_of(R::ARCH)) || !WAITS.contains(&(operation & !FLAGS)) || address % 4 != 0 {
            return None;
        }
        let spans = [(BEFORE, FROM), (0, FROM), (BEFORE, 4), (0, 4)];
        FutexWait::new(address, operation, expected, timeout != 0).with_memory(&spans, memory)
    }

    fn new(address: u64, operation: u32, expected: u32, timed: bool) -> FutexWait {
        FutexWait { address, operation, expected, timed, bytes: [0; ROOM], length: 0, start: address }
    }

    /// Adds the memory around the word.
    ///
    /// `spans` are pairs of the number of bytes before the word and from the word on. The first one
    /// that can be read is used, so that memory next to an unmapped page is kept, too.
    fn with_memory<M: Memory>(mut self, spans: &[(usize, usize)], memory: &mut M) -> Option<FutexWait> {
        for (before, from) in spans {
            self.length = before.wrapping_add(*from);
            self.start = self.address.wrapping_sub(*before as u64);
            let Some(into) = self.bytes.get_mut(..self.length) else { continue };
            if memory.read(self.start, into).is_ok() {
                return Some(self);
            }
        }
        None
    }

    /// Returns the bytes around the word that could be read, from [`start`](Self::start) on.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// Returns the address of the first of the [`bytes`](Self::bytes).
    pub fn start(&self) -> u64 {
        self.start
    }
}
