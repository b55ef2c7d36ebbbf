//! The crash itself, and how writing its report went.

use super::address::{Address, Id};
use super::frame::{Frame, Skipped};
use super::names;
use super::system_calls::system_call_name;
use super::timestamp::Timestamp;
use super::value::Extra;
use crate::wire::{Access, Language, Monitor, Os, Phase, SectionKind};
use coroner_process::registers::Arch;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::time::Duration;

/// A report's identity.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Header {
    /// Format version of the report.
    pub format_version: u32,
    /// The crashed run's id.
    pub run_id: Id,
    /// The event's id, stable over retries of sending.
    pub event_id: Id,
    /// Process id.
    pub pid: u32,
    /// The parent's process id.
    pub ppid: u32,
    /// The process's name.
    pub process_name: String,
    /// Architecture; `None` if this version does not know it.
    #[serde(serialize_with = "arch_name", deserialize_with = "arch_of_name")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub arch: Option<Arch>,
    /// Operating system.
    pub os: Os,
    /// Size of a page in bytes.
    pub page_size: u32,
    /// Mask of the pointer bits that hold a pointer authentication code.
    pub pointer_auth_mask: Address,
    /// Version of the Coroner that wrote the report.
    pub sdk_version: String,
    /// Start time of the process.
    pub process_start: Timestamp,
    /// Keys of a later version.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
}

#[allow(clippy::ref_option, clippy::trivially_copy_pass_by_ref)] // serde's signature.
fn arch_name<S: Serializer>(arch: &Option<Arch>, serializer: S) -> Result<S::Ok, S::Error> {
    arch.map(Arch::name).serialize(serializer)
}

fn arch_of_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Arch>, D::Error> {
    let name = Option::<String>::deserialize(deserializer)?;
    Ok([Arch::X86_64, Arch::Aarch64].into_iter().find(|arch| Some(arch.name()) == name.as_deref()))
}

/// A fact about a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CrashFlag {
    /// The stack had no room left.
    StackOverflow,
    /// The crash path itself crashed.
    Recrash,
    /// The process continued.
    NotFatal,
    /// The stack pointer pointed to no readable memory.
    BadStackPointer,
    /// The process was a child after `fork`.
    ForkChild,
}

/// The crash: time, monitor, signal or Mach exception, thread and message.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Crash {
    /// Time of the crash.
    pub time: Timestamp,
    /// Nanoseconds since install, by the monotonic clock.
    pub since_install_ns: u64,
    /// The monitor that noticed the crash.
    pub monitor: Monitor,
    /// The signal, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<Signal>,
    /// The Mach exception, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mach: Option<Mach>,
    /// The thread that crashed.
    pub tid: u64,
    /// Facts that hold for this crash.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<CrashFlag>,
    /// The faulting instruction's memory access.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<Access>,
    /// The address of the fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Address>,
    /// Other threads that crashed while this report was written.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub concurrent_crashes: Vec<ConcurrentCrash>,
    /// The message of an abort, an assertion or a panic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Type of the uncaught exception.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exception_type: Option<String>,
    /// Source location of a panic or an assertion: `file:line:column`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// The hang, if this is a hang report; `tid` is then the unresponsive thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hang: Option<Hang>,
    /// Keys of a later version.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
}

/// A thread that did not respond.
///
/// Durations count only the time in which the process ran: neither suspension nor system sleep
/// counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Hang {
    /// Index of the hang in its run, from 0.
    pub number: u8,
    /// Nanoseconds that the hang had lasted when the report was begun.
    pub lasted_ns: u64,
    /// Total duration in nanoseconds, once the hang ended.
    ///
    /// Taken from the run state, so present only if that is available. If absent, the hang was
    /// still in progress when the process ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ns: Option<u64>,
    /// Keys of a later version.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
}

impl Hang {
    /// Returns the duration as far as it is known, and whether it is the total.
    pub fn duration(&self) -> (Duration, bool) {
        (Duration::from_nanos(self.duration_ns.unwrap_or(self.lasted_ns)), self.duration_ns.is_some())
    }
}

impl Crash {
    /// Whether `flag` is set.
    pub fn has(&self, flag: CrashFlag) -> bool {
        self.flags.contains(&flag)
    }

    /// Whether this is a fault whose address neither the processor nor the kernel reports.
    ///
    /// These are `SI_KERNEL` on Linux (on x86_64 a non-canonical address, a privileged instruction
    /// or a breakpoint), `EXC_I386_GPFLT` on Darwin, and an access violation without an address on
    /// Windows.
    pub fn is_address_unknown(&self) -> bool {
        let by_kernel = self
            .signal
            .as_ref()
            .is_some_and(|s| s.code_name == Some("SI_KERNEL") || s.name == Some("EXCEPTION_ACCESS_VIOLATION"));
        // `EXC_BAD_ACCESS` and `EXC_I386_GPFLT` from <mach/exception_types.h> and
        // <mach/i386/exception.h>.
        let by_mach = self.mach.as_ref().is_some_and(|mach| (mach.exception, mach.code) == (1, 13));
        self.address.is_none() && (by_kernel || by_mach)
    }
}

/// A POSIX signal; on Windows an exception or a signal of the C runtime.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Signal {
    /// Signal number on the report's system, or the code of a Windows exception.
    pub number: i32,
    /// Signal name, such as `SIGSEGV` or `EXCEPTION_ACCESS_VIOLATION`.
    #[serde(skip_deserializing)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'static str>,
    /// `si_code`.
    pub code: i32,
    /// Name of the code, such as `SEGV_MAPERR`.
    #[serde(skip_deserializing)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code_name: Option<&'static str>,
    /// Whether the code is unknown, and therefore 0: another tool's file may not have it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unknown_code: bool,
    /// `si_errno`.
    pub errno: i32,
    /// `si_addr`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Address>,
    /// Process id of the sender.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sender_pid: Option<u32>,
    /// User id of the sender.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sender_uid: Option<u32>,
    /// Number of the exception vector (x86_64).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trap_number: Option<u64>,
    /// The exception's error code (x86_64) or the exception syndrome (arm64).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_code: Option<u64>,
    /// The system call of a SIGSYS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub syscall: Option<i32>,
    /// Name of the system call, such as `openat`.
    #[serde(skip_deserializing)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub syscall_name: Option<&'static str>,
    /// The system call's architecture (`AUDIT_ARCH_…`) if it is not the process's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub syscall_arch: Option<u32>,
    /// Keys of a later version.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
}

impl Signal {
    /// Returns the code's name, or else its number; `None` if it is unknown.
    pub fn code_text(&self) -> Option<String> {
        match self.code_name {
            Some(name) => Some(name.to_owned()),
            None => (!self.unknown_code).then(|| format!("code {}", self.code)),
        }
    }

    /// Fills in the names of the numbers on `os`.
    pub(crate) fn name_for(&mut self, os: Os, arch: Option<Arch>) {
        self.name = names::signal_name(os, self.number);
        self.code_name = names::signal_code_name(os, self.number, self.code).filter(|_| !self.unknown_code);
        if let (Some(number), Some(arch), None) = (self.syscall, arch, self.syscall_arch) {
            self.syscall_name = system_call_name(os, arch, number.into());
        }
    }
}

/// A Mach exception.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Mach {
    /// Exception number.
    pub exception: i32,
    /// Exception name, such as `EXC_BAD_ACCESS`.
    #[serde(skip_deserializing)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'static str>,
    /// Exception code.
    pub code: i64,
    /// Name of the code, such as `KERN_INVALID_ADDRESS`.
    #[serde(skip_deserializing)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code_name: Option<&'static str>,
    /// Exception subcode.
    pub subcode: i64,
    /// Whether the codes are unknown, and therefore 0: a report of another tool may not have them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unknown_codes: bool,
    /// Keys of a later version.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
}

impl Mach {
    /// Returns the code's name, or else its number; `None` if it is unknown.
    pub fn code_text(&self) -> Option<String> {
        match self.code_name {
            Some(name) => Some(name.to_owned()),
            None => (!self.unknown_codes).then(|| format!("code {:#x}", self.code)),
        }
    }

    /// Fills in the names of the numbers.
    pub(super) fn name(&mut self) {
        self.name = names::mach_exception_name(self.exception);
        self.code_name = names::mach_code_name(self.exception, self.code);
    }

    /// Returns the exception with the given number and codes, with their names.
    pub fn new(exception: i32, code: i64, subcode: i64) -> Mach {
        let mut mach = Mach { exception, code, subcode, ..Mach::default() };
        mach.name();
        mach
    }
}

/// Another thread that crashed while the report was written.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ConcurrentCrash {
    /// The thread that crashed.
    pub tid: u64,
    /// Signal number.
    pub signal: i32,
    /// Signal name.
    #[serde(skip_deserializing)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'static str>,
    /// `si_code` of the signal.
    pub code: i32,
    /// `si_addr` of the signal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Address>,
    /// Nanoseconds after the first crash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_ns: Option<u64>,
    /// Keys of a later version.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
}

/// An exception of a language runtime.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Exception {
    /// The language.
    pub language: Language,
    /// Type of the exception.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub type_name: Option<String>,
    /// The type as the runtime named it, if [`Self::type_name`] is the source's name.
    ///
    /// C++ mangles type names, for example.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub raw_type_name: Option<String>,
    /// `what()`, the reason, or the panic message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The thread that threw the exception.
    pub tid: u64,
    /// Source location: `file:line:column`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// The `userInfo` of an `NSException`, described.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_info: Option<String>,
    /// Stack of the throw, innermost first.
    pub frames: Vec<Frame>,
    /// Positions at which frames were left out of `frames`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<Skipped>,
    /// Keys of a later version.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
}

/// A text that an image or the system left for a crash reporter.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Annotation {
    /// Place where the text was found.
    pub source: String,
    /// The text.
    pub text: String,
    /// Keys of a later version.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
}

/// A fault in the crash path itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Fault {
    /// The section that was being written.
    pub section: SectionKind,
    /// Signal number of the fault.
    pub signal: i32,
    /// Signal name.
    #[serde(skip_deserializing)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'static str>,
    /// `si_code` of the signal.
    pub code: i32,
    /// The address that could not be accessed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Address>,
    /// Program counter of the crash path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pc: Option<Address>,
    /// The thread whose data was being read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tid: Option<u64>,
    /// Keys of a later version.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
}

/// Outcome of writing the report.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct End {
    /// Whether the report contains everything that was requested.
    pub complete: bool,
    /// Whether the deadline cut the report short.
    pub deadline: bool,
    /// Nanoseconds from the fault to the last section.
    pub total_ns: u64,
    /// Duration of each phase.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<PhaseDuration>,
    /// Elements that were left out, by section kind.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<SectionCount>,
    /// Number of threads in the process.
    pub threads: u64,
    /// Number of threads whose registers are in the report.
    pub threads_captured: u64,
    /// Keys of a later version.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
}

impl End {
    /// Time from the fault to the last section.
    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.total_ns)
    }
}

/// Duration of a phase of the crash path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PhaseDuration {
    /// The phase.
    pub phase: Phase,
    /// Duration in nanoseconds.
    pub ns: u64,
}

/// A number of elements of one section kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SectionCount {
    /// The section kind.
    pub section: SectionKind,
    /// Number of elements.
    pub count: u64,
}
