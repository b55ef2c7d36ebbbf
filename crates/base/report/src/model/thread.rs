//! Threads, their registers and their frames.

use super::address::{Address, Bytes};
use super::crash::Exception;
use super::frame::{Frame, Skipped};
use super::value::Extra;
use crate::wire::{CaptureMethod, ExtraRegister, NotCaptured, ThreadState, WalkEnd};
use coroner_process::heap_sort;
use coroner_process::registers::{AARCH64_NAMES, Aarch64Registers, Arch, X86_64_NAMES, X86_64Registers};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;

/// A thread of the crashed process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Thread {
    /// The system's thread id.
    pub tid: u64,
    /// Thread name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The dispatch queue whose work the thread ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Processor time that the thread has used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_time: Option<CpuTime>,
    /// Whether the thread crashed.
    pub crashed: bool,
    /// Whether the thread was running the handler that wrote the report.
    pub current: bool,
    /// Whether the thread is the process's first thread.
    pub main: bool,
    /// State of the thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<ThreadState>,
    /// The system call that the thread was blocked in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub syscall: Option<i64>,
    /// The system call's name, such as `futex`.
    #[serde(skip_deserializing)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub syscall_name: Option<&'static str>,
    /// The futex that the thread waits for, or the object of an Apple ulock or psynch call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub futex: Option<FutexWait>,
    /// The name of the thread's port in the process (Apple): some locks contain it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u32>,
    /// Source of the registers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub captured_by: Option<CaptureMethod>,
    /// Why there are no registers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_captured: Option<NotCaptured>,
    /// Stack range: the lowest address and the address after the highest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack: Option<(Address, Address)>,
    /// Registers of the thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registers: Option<Registers>,
    /// Frames of the thread, innermost first.
    pub frames: Vec<Frame>,
    /// Positions at which frames were left out of `frames`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<Skipped>,
    /// Why the walk ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub walk_end: Option<WalkEnd>,
    /// Keys of a later version.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
}

impl Thread {
    /// Whether the thread's stack is the exception's, so that it needs to be shown only once.
    ///
    /// This is the case for exceptions reported where they were thrown.
    pub fn has_frames_of(&self, exception: &Exception) -> bool {
        // Frames of a managed runtime have no addresses.
        let addresses = |frames: &[Frame]| -> Vec<_> {
            let key = |frame: &Frame| (frame.address, (frame.address.0 == 0).then(|| frame.function.clone()));
            frames.iter().map(key).collect()
        };
        !self.frames.is_empty() && addresses(&self.frames) == addresses(&exception.frames)
    }
}

/// The futex(2) call that a thread waits in, with the memory around its word.
///
/// On Apple's systems the `ulock_wait` or `psynch_…` call with the thread's system call number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct FutexWait {
    /// Address of the word; for `psynch_…` that of the mutex, condition variable or lock.
    pub address: Address,
    /// Operation with its flags; for `psynch_…` the flags.
    pub operation: u32,
    /// Value that the word was expected to have.
    ///
    /// For `psynch_…` the lowest bits of the sequence number.
    pub expected: u32,
    /// Whether the call has a timeout.
    pub timed: bool,
    /// Address of the first byte of `bytes`.
    pub start: Address,
    /// Memory around the word.
    pub bytes: Bytes,
}

impl FutexWait {
    /// Returns the 32-bit word at `offset` bytes from the futex's word, `None` if it was not kept.
    pub fn at(&self, offset: i64) -> Option<u32> {
        let place = self.address.0.checked_add_signed(offset)?.checked_sub(self.start.0)?;
        let bytes = self.bytes.0.get(usize::try_from(place).ok()?..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    }

    /// Returns the futex's word itself.
    pub fn word(&self) -> Option<u32> {
        self.at(0)
    }
}

impl From<&coroner_process::futex_wait::FutexWait> for FutexWait {
    fn from(wait: &coroner_process::futex_wait::FutexWait) -> Self {
        Self {
            address: Address(wait.address),
            operation: wait.operation,
            expected: wait.expected,
            timed: wait.timed,
            start: Address(wait.start()),
            bytes: Bytes(wait.bytes().to_vec()),
        }
    }
}

/// A thread's processor time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CpuTime {
    /// Nanoseconds in user mode.
    pub user_ns: u64,
    /// Nanoseconds in the kernel.
    pub system_ns: u64,
}

/// The registers of a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// Architecture; `None` if this version doesn't know it.
    ///
    /// Without it, the general registers have no names.
    pub arch: Option<Arch>,
    /// General registers, in the order of [`X86_64Registers`] or [`Aarch64Registers`].
    ///
    /// x86_64: 16 gpr, pc, flags; arm64: 31 x, sp, pc, pstate.
    pub general: Vec<u64>,
    /// Registers other than the general ones.
    pub extra: Vec<(ExtraRegister, u64)>,
    /// Whether only the registers that a call preserves are known, and all others are 0.
    ///
    /// This is the case if the thread itself requested the report.
    pub only_preserved: bool,
}

impl Registers {
    /// The names of the general registers, in the usual order.
    fn names(&self) -> (&'static [&'static str], &'static [&'static str]) {
        match self.arch {
            Some(Arch::X86_64) => (&X86_64_NAMES, &["rip", "rflags"]),
            Some(Arch::Aarch64) => (&AARCH64_NAMES, &["sp", "pc", "pstate"]),
            None => (&[], &[]),
        }
    }

    /// Returns every known general register with its name, in the usual order.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let (names, more) = self.names();
        let is_known = |name: &str| match self.arch {
            Some(Arch::X86_64) => matches!(name, "rbx" | "rbp" | "rsp" | "r12" | "r13" | "r14" | "r15" | "rip"),
            _ => AARCH64_NAMES[19..].contains(&name) || matches!(name, "sp" | "pc"),
        };
        let all = names.iter().chain(more).copied().zip(self.general.iter().copied());
        all.filter(move |(name, _)| !self.only_preserved || is_known(name))
    }

    /// The general registers as x86_64 registers, if they are.
    pub fn x86_64(&self) -> Option<X86_64Registers> {
        let (gpr, rest) = self.general.split_first_chunk::<16>()?;
        match (self.arch, rest) {
            (Some(Arch::X86_64), [pc, flags]) => Some(X86_64Registers { gpr: *gpr, pc: *pc, flags: *flags }),
            _ => None,
        }
    }

    /// The general registers as arm64 registers, if they are.
    pub fn aarch64(&self) -> Option<Aarch64Registers> {
        let (x, rest) = self.general.split_first_chunk::<31>()?;
        match (self.arch, rest) {
            (Some(Arch::Aarch64), [sp, pc, pstate]) => {
                Some(Aarch64Registers { x: *x, sp: *sp, pc: *pc, pstate: *pstate })
            }
            _ => None,
        }
    }

    /// The program counter.
    pub fn pc(&self) -> Option<Address> {
        self.x86_64()
            .map(|registers| registers.pc)
            .or_else(|| self.aarch64().map(|registers| registers.pc))
            .map(Address)
    }

    /// The stack pointer.
    pub fn sp(&self) -> Option<Address> {
        let x86_64 = self.x86_64().map(|registers| registers.sp());
        x86_64.or_else(|| self.aarch64().map(|registers| registers.sp)).map(Address)
    }
}

/// Serializes a map from register names to hexadecimal text; extra registers come last.
impl Serialize for Registers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if self.arch.is_none() {
            for (index, value) in self.general.iter().enumerate() {
                map.serialize_entry(&format!("r{index}"), &Address(*value))?;
            }
        }
        for (name, value) in self.named() {
            map.serialize_entry(name, &Address(value))?;
        }
        for (register, value) in &self.extra {
            map.serialize_entry(&register.to_string(), &Address(*value))?;
        }
        map.end()
    }
}

/// Deserializes by register names: each architecture's names are unique.
impl<'de> Deserialize<'de> for Registers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut written = BTreeMap::<String, Address>::deserialize(deserializer)?;
        let arch = match () {
            () if written.contains_key("rip") => Some(Arch::X86_64),
            () if written.contains_key("pc") => Some(Arch::Aarch64),
            () => None,
        };
        let mut registers = Registers { arch, ..Registers::default() };
        let (names, more) = registers.names();
        for name in names.iter().chain(more) {
            let value = written.remove(*name);
            registers.only_preserved |= value.is_none();
            registers.general.push(value.unwrap_or_default().0);
        }
        while let Some(value) = written.remove(&format!("r{}", registers.general.len())).filter(|_| arch.is_none()) {
            registers.general.push(value.0);
        }
        let number = |name: &str| name.parse().ok().map(ExtraRegister);
        let extra = written
            .into_iter()
            .filter_map(|(name, value)| Some((ExtraRegister::from_name(&name).or_else(|| number(&name))?, value.0)));
        registers.extra = extra.collect();
        heap_sort(&mut registers.extra, |(first, _), (second, _)| first < second);
        Ok(registers)
    }
}
