//! What happened, and how writing it down went.

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

/// Identity of a report.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Header {
    /// Version of the format that it was written in.
    pub format_version: u32,
    /// The run that died.
    pub run_id: Id,
    /// Identity of the event, stable over retries of sending.
    pub event_id: Id,
    /// Process id.
    pub pid: u32,
    /// Parent's process id.
    pub ppid: u32,
    /// Name of the process.
    pub process_name: String,
    /// Architecture; `None` if this version does not know it.
    #[serde(serialize_with = "arch_name", deserialize_with = "arch_of_name")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub arch: Option<Arch>,
    /// Operating system.
    pub os: Os,
    /// Size of a page in bytes.
    pub page_size: u32,
    /// Bits of a pointer that are a pointer authentication code.
    pub pointer_auth_mask: Address,
    /// Version of the Coroner that wrote it.
    pub sdk_version: String,
    /// Start of the process.
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

/// A fact of a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CrashFlag {
    /// The stack had no room left.
    StackOverflow,
    /// The crash path itself crashed.
    Recrash,
    /// The process went on.
    NotFatal,
    /// The stack pointer was in no readable memory.
    BadStackPointer,
    /// A child after `fork`.
    ForkChild,
}

/// What happened.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Crash {
    /// When.
    pub time: Timestamp,
    /// When: nanoseconds since install, by the monotonic clock.
    pub since_install_ns: u64,
    /// What noticed it.
    pub monitor: Monitor,
    /// The signal, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<Signal>,
    /// The Mach exception, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mach: Option<Mach>,
    /// The thread that crashed.
    pub tid: u64,
    /// Facts that are true.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<CrashFlag>,
    /// What the faulting instruction did to memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<Access>,
    /// The address that the fault is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Address>,
    /// Other threads that crashed while this report was written.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub concurrent_crashes: Vec<ConcurrentCrash>,
    /// The message of an abort, an assertion, a panic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Type of the uncaught exception.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exception_type: Option<String>,
    /// Source location of a panic or an assertion: `file:line:column`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// The hang, if the report is of one: `tid` is then the thread that did not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hang: Option<Hang>,
    /// Keys of a later version.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
}

/// A thread that did not answer. Times are those in which the process ran: neither suspension nor the system's sleep counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Hang {
    /// Which hang of the run it is, 0 being the first.
    pub number: u8,
    /// How long it had lasted when the report was begun.
    pub lasted_ns: u64,
    /// How long it lasted in all, once it ended: of the run state, so known where that is. Without it, it was still going on
    /// when the process ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ns: Option<u64>,
    /// Keys of a later version.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
}

impl Hang {
    /// How long it lasted, as far as that is known, and whether it is known to the end.
    pub fn duration(&self) -> (Duration, bool) {
        (Duration::from_nanos(self.duration_ns.unwrap_or(self.lasted_ns)), self.duration_ns.is_some())
    }
}

impl Crash {
    /// Whether `flag` is true.
    pub fn has(&self, flag: CrashFlag) -> bool {
        self.flags.contains(&flag)
    }

    /// Whether it is a fault whose address the processor or the kernel does not say: `SI_KERNEL` on Linux (on x86_64 a non-canonical
    /// address, a privileged instruction, a breakpoint), `EXC_I386_GPFLT` on Darwin, an access violation at no address on Windows.
    pub fn is_address_unknown(&self) -> bool {
        let by_kernel = self
            .signal
            .as_ref()
            .is_some_and(|s| s.code_name == Some("SI_KERNEL") || s.name == Some("EXCEPTION_ACCESS_VIOLATION"));
        // `EXC_BAD_ACCESS` and `EXC_I386_GPFLT` of <mach/exception_types.h> and <mach/i386/exception.h>.
        let by_mach = self.mach.as_ref().is_some_and(|mach| (mach.exception, mach.code) == (1, 13));
        self.address.is_none() && (by_kernel || by_mach)
    }
}

/// A POSIX signal; on Windows an exception, or a signal of the C runtime.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Signal {
    /// Its number on the system that the report is from; of an exception of Windows its code.
    pub number: i32,
    /// Its name, such as `SIGSEGV` or `EXCEPTION_ACCESS_VIOLATION`.
    #[serde(skip_deserializing)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'static str>,
    /// `si_code`.
    pub code: i32,
    /// The code's name, such as `SEGV_MAPERR`.
    #[serde(skip_deserializing)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code_name: Option<&'static str>,
    /// `si_errno`.
    pub errno: i32,
    /// `si_addr`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Address>,
    /// Who sent it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sender_pid: Option<u32>,
    /// The sender's user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sender_uid: Option<u32>,
    /// x86_64: number of the exception vector.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trap_number: Option<u64>,
    /// x86_64: the exception's error code; arm64: the exception syndrome.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_code: Option<u64>,
    /// SIGSYS: the system call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub syscall: Option<i32>,
    /// The system call's name, such as `openat`.
    #[serde(skip_deserializing)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub syscall_name: Option<&'static str>,
    /// The system call's architecture (`AUDIT_ARCH_…`), where it is not the process's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub syscall_arch: Option<u32>,
    /// Keys of a later version.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
}

impl Signal {
    /// Fills in the names that the numbers have on `os`.
    pub(crate) fn name_for(&mut self, os: Os, arch: Option<Arch>) {
        self.name = names::signal_name(os, self.number);
        self.code_name = names::signal_code_name(os, self.number, self.code);
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
    /// Its number.
    pub exception: i32,
    /// Its name, such as `EXC_BAD_ACCESS`.
    #[serde(skip_deserializing)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'static str>,
    /// The code.
    pub code: i64,
    /// The code's name, such as `KERN_INVALID_ADDRESS`.
    #[serde(skip_deserializing)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code_name: Option<&'static str>,
    /// The subcode.
    pub subcode: i64,
    /// Keys of a later version.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
}

impl Mach {
    /// Fills in the names that the numbers have.
    pub(super) fn name(&mut self) {
        self.name = names::mach_exception_name(self.exception);
        self.code_name = names::mach_code_name(self.exception, self.code);
    }

    /// An exception by its number and codes, with their names.
    pub fn of(exception: i32, code: i64, subcode: i64) -> Mach {
        let mut mach = Mach { exception, code, subcode, ..Mach::default() };
        mach.name();
        mach
    }
}

/// Another thread that crashed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ConcurrentCrash {
    /// The thread.
    pub tid: u64,
    /// Its signal.
    pub signal: i32,
    /// The signal's name.
    #[serde(skip_deserializing)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'static str>,
    /// Its `si_code`.
    pub code: i32,
    /// Its `si_addr`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Address>,
    /// Nanoseconds after the first crash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_ns: Option<u64>,
    /// Keys of a later version.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
}

/// An exception of a language's runtime.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Exception {
    /// The language.
    pub language: Language,
    /// Its type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub type_name: Option<String>,
    /// The type as its runtime named it, where [`Self::type_name`] is the source's name by now: C++ mangles them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub raw_type_name: Option<String>,
    /// `what()`, the reason, the panic message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The thread that threw it.
    pub tid: u64,
    /// `file:line:column`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// The `userInfo` of an `NSException`, described.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_info: Option<String>,
    /// Stack of the throw, innermost first.
    pub frames: Vec<Frame>,
    /// Where frames were left out.
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
    /// Where it was found.
    pub source: String,
    /// The text.
    pub text: String,
    /// Keys of a later version.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
}

/// A fault of the crash path itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Fault {
    /// The section that was being written.
    pub section: SectionKind,
    /// The signal of the fault.
    pub signal: i32,
    /// The signal's name.
    #[serde(skip_deserializing)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'static str>,
    /// Its `si_code`.
    pub code: i32,
    /// The address that could not be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Address>,
    /// Where the crash path was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pc: Option<Address>,
    /// The thread that was being read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tid: Option<u64>,
    /// Keys of a later version.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
}

/// How writing the report went.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct End {
    /// Whether everything that was asked for is there.
    pub complete: bool,
    /// Whether the deadline ended the report.
    pub deadline: bool,
    /// Nanoseconds from the fault to the last section.
    pub total_ns: u64,
    /// How long each phase took.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<PhaseDuration>,
    /// What was left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<SectionCount>,
    /// Threads of the process.
    pub threads: u64,
    /// Threads whose registers are in the report.
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

/// How long a phase took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PhaseDuration {
    /// The phase.
    pub phase: Phase,
    /// Nanoseconds.
    pub ns: u64,
}

/// A number of elements of a kind of section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SectionCount {
    /// The kind.
    pub section: SectionKind,
    /// How many.
    pub count: u64,
}
