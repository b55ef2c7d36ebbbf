//! The header, the crash, and the language exceptions behind it.

use super::encoder::{Encoder, optional, optional_int, optional_text, optional_uint};
use super::keys::{concurrent_crash, crash, exception, hang, header, mach_exception, signal};
use super::numbers::{Access, Language, Monitor, Os};
use super::thread::Frame;
use coroner_process::registers::Arch;

/// Identity of a report.
///
/// This is the first section, so that even a file that ends right after it can be attributed.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a> {
    /// Format version, [`FORMAT_VERSION`](super::FORMAT_VERSION).
    pub format_version: u32,
    /// Id of the crashed run (one `install`), which names its directory and its run state.
    pub run_id: [u8; 16],
    /// Identity of the event, a version 4 UUID.
    ///
    /// Created at install, so that it stays the same over retries of sending.
    pub event_id: [u8; 16],
    /// Process id.
    pub pid: u32,
    /// Parent's process id.
    pub ppid: u32,
    /// Architecture of the process; `None` if the report format has no registers for it.
    pub arch: Option<Arch>,
    /// Operating system.
    pub os: Os,
    /// Size of a page in bytes.
    pub page_size: u32,
    /// Mask of the pointer bits that hold a pointer authentication code (arm64), else 0.
    pub pointer_auth_mask: u64,
    /// Version of Coroner, such as `0.1.0`.
    pub sdk_version: &'a [u8],
    /// Start time of the process, in nanoseconds since the Unix epoch.
    pub process_start_ns: u64,
    /// Name of the process.
    pub process_name: &'a [u8],
}

impl Header<'_> {
    /// Encodes the payload of a header section.
    pub fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.map(header::REQUIRED);
        encoder.uint_pair(header::FORMAT_VERSION, self.format_version.into());
        encoder.uint(header::RUN_ID);
        encoder.bytes(&self.run_id);
        encoder.uint(header::EVENT_ID);
        encoder.bytes(&self.event_id);
        encoder.uint_pair(header::PID, self.pid.into());
        encoder.uint_pair(header::PPID, self.ppid.into());
        encoder.uint_pair(header::ARCH, self.arch.map_or(0, |arch| u64::from(arch as u8)));
        encoder.uint_pair(header::OS, self.os.0.into());
        encoder.uint_pair(header::PAGE_SIZE, self.page_size.into());
        encoder.uint_pair(header::POINTER_AUTH_MASK, self.pointer_auth_mask);
        encoder.text_pair(header::SDK_VERSION, self.sdk_version);
        encoder.uint_pair(header::PROCESS_START, self.process_start_ns);
        encoder.text_pair(header::PROCESS_NAME, self.process_name);
    }
}

/// A POSIX signal, with data from `siginfo_t` and the context.
///
/// On Windows an exception, or a signal of the C runtime.
#[derive(Clone, Copy, Debug, Default)]
pub struct Signal {
    /// `si_signo`, in the numbering of the header's system.
    ///
    /// On Windows the exception's code (`0xC0000005`), or the C runtime's SIGABRT.
    pub number: i32,
    /// `si_code`.
    pub code: i32,
    /// `si_errno`.
    pub errno: i32,
    /// `si_addr`, for signals that have one.
    pub address: Option<u64>,
    /// `si_pid`: the sending process, for signals that a process sent.
    pub sender_pid: Option<u32>,
    /// `si_uid`.
    pub sender_uid: Option<u32>,
    /// Number of the exception vector (`REG_TRAPNO`, x86_64).
    pub trap_number: Option<u64>,
    /// The exception's error code (`REG_ERR`, x86_64) or the exception syndrome (`ESR`, arm64).
    pub error_code: Option<u64>,
    /// Number of the system call that a filter rejected, for SIGSYS.
    pub syscall: Option<i32>,
    /// `si_arch` (`AUDIT_ARCH_…`) of a SIGSYS, if it is not the process's own.
    ///
    /// The system call number is then from that architecture's table.
    pub syscall_arch: Option<u32>,
}

impl Signal {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.begin_map();
        encoder.uint(signal::NUMBER);
        encoder.int(self.number.into());
        encoder.uint(signal::CODE);
        encoder.int(self.code.into());
        encoder.uint(signal::ERRNO);
        encoder.int(self.errno.into());
        optional_uint(encoder, signal::ADDRESS, self.address);
        optional_uint(encoder, signal::SENDER_PID, self.sender_pid.map(u64::from));
        optional_uint(encoder, signal::SENDER_UID, self.sender_uid.map(u64::from));
        optional_uint(encoder, signal::TRAP_NUMBER, self.trap_number);
        optional_uint(encoder, signal::ERROR_CODE, self.error_code);
        optional_int(encoder, signal::SYSCALL, self.syscall.map(i64::from));
        optional_uint(encoder, signal::SYSCALL_ARCH, self.syscall_arch.map(u64::from));
        encoder.end();
    }
}

/// A Mach exception, with data from its message (`mach/exception_types.h`).
#[derive(Clone, Copy, Debug, Default)]
pub struct Mach {
    /// The exception's number: 1 is `EXC_BAD_ACCESS`, and so on.
    pub exception: i32,
    /// `code[0]`.
    pub code: i64,
    /// `code[1]`, the subcode: the address for `EXC_BAD_ACCESS`.
    pub subcode: i64,
}

impl Mach {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.map(mach_exception::REQUIRED);
        encoder.uint(mach_exception::EXCEPTION);
        encoder.int(self.exception.into());
        encoder.uint(mach_exception::CODE);
        encoder.int(self.code);
        encoder.uint(mach_exception::SUBCODE);
        encoder.int(self.subcode);
    }
}

/// Another thread that crashed while this report was being written.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConcurrentCrash {
    /// The thread that crashed.
    pub tid: u64,
    /// Signal number, or 0 if there was no signal.
    pub signal: i32,
    /// `si_code` of the signal.
    pub code: i32,
    /// `si_addr` of the signal.
    pub address: Option<u64>,
    /// Nanoseconds after the first crash.
    pub after_ns: Option<u64>,
}

impl ConcurrentCrash {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.begin_map();
        encoder.uint_pair(concurrent_crash::TID, self.tid);
        encoder.uint(concurrent_crash::SIGNAL);
        encoder.int(self.signal.into());
        encoder.uint(concurrent_crash::CODE);
        encoder.int(self.code.into());
        optional_uint(encoder, concurrent_crash::ADDRESS, self.address);
        optional_uint(encoder, concurrent_crash::AFTER, self.after_ns);
        encoder.end();
    }
}

/// A thread that did not respond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hang {
    /// Index of the hang in its run, from 0.
    ///
    /// The run state stores its duration under
    /// [`Scalar::hang_duration`](crate::run_state::Scalar::hang_duration) of this number.
    pub number: u8,
    /// Nanoseconds of process run time that the hang had lasted when the report was begun.
    pub lasted_ns: u64,
}

impl Hang {
    fn encode(self, encoder: &mut Encoder<'_>) {
        encoder.map(hang::REQUIRED);
        encoder.uint_pair(hang::NUMBER, self.number.into());
        encoder.uint_pair(hang::LASTED, self.lasted_ns);
    }
}

/// Flags of a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrashFlags(pub u32);

impl CrashFlags {
    /// The stack had no room left.
    pub const STACK_OVERFLOW: CrashFlags = CrashFlags(1);
    /// The crash path itself crashed; this report is about the first crash as far as it was
    /// written.
    pub const RECRASH: CrashFlags = CrashFlags(1 << 1);
    /// The process continued after this report (a handled exception, a hang that ended).
    pub const NOT_FATAL: CrashFlags = CrashFlags(1 << 2);
    /// The stack pointer pointed to no readable memory.
    pub const BAD_STACK_POINTER: CrashFlags = CrashFlags(1 << 3);
    /// The process is a child after `fork` that runs under its parent's install.
    pub const FORK_CHILD: CrashFlags = CrashFlags(1 << 4);

    /// Returns the union of both sets.
    #[must_use]
    pub const fn with(self, other: CrashFlags) -> CrashFlags {
        CrashFlags(self.0 | other.0)
    }

    /// Whether all flags of `other` are set.
    pub const fn has(self, other: CrashFlags) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The crash: time, monitor, signal or Mach exception, thread and message.
#[derive(Clone, Copy, Debug, Default)]
pub struct Crash<'a> {
    /// Time of the crash, in nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Nanoseconds since install, by the monotonic clock.
    pub since_install_ns: u64,
    /// The monitor that noticed the crash.
    pub monitor: Monitor,
    /// The signal, if there was one.
    pub signal: Option<Signal>,
    /// The Mach exception, if there was one.
    pub mach: Option<Mach>,
    /// The thread that crashed.
    pub tid: u64,
    /// Flags of the crash.
    pub flags: CrashFlags,
    /// The faulting instruction's memory access, if the processor reports it.
    pub access: Option<Access>,
    /// The address of the fault, as exact as known.
    ///
    /// From `si_addr`, FAR, CR2 or the instruction.
    pub address: Option<u64>,
    /// Other threads that crashed before this section was written. For later ones, write it again.
    pub concurrent_crashes: &'a [ConcurrentCrash],
    /// The message of an abort, an assertion or a panic.
    pub message: Option<&'a [u8]>,
    /// Type of the uncaught exception, demangled or not.
    pub exception_type: Option<&'a [u8]>,
    /// Source location of a panic or an assertion: `file:line:column`.
    pub location: Option<&'a [u8]>,
    /// The hang, if this is a hang report; `tid` is then the unresponsive thread.
    pub hang: Option<Hang>,
}

impl Crash<'_> {
    /// Encodes the payload of a crash section.
    pub fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.begin_map();
        encoder.uint_pair(crash::TIME, self.time_ns);
        encoder.uint_pair(crash::SINCE_INSTALL, self.since_install_ns);
        encoder.uint_pair(crash::MONITOR, self.monitor.0.into());
        encoder.uint_pair(crash::TID, self.tid);
        encoder.uint_pair(crash::FLAGS, self.flags.0.into());
        optional_uint(encoder, crash::ACCESS, self.access.map(|access| access.0.into()));
        optional_uint(encoder, crash::ADDRESS, self.address);
        optional(encoder, crash::SIGNAL, self.signal, |encoder, signal| signal.encode(encoder));
        optional(encoder, crash::MACH, self.mach, |encoder, mach| mach.encode(encoder));
        optional(encoder, crash::HANG, self.hang, |encoder, hang| hang.encode(encoder));
        if !self.concurrent_crashes.is_empty() {
            encoder.element(|encoder| {
                encoder.uint(crash::CONCURRENT_CRASHES);
                encoder.begin_array();
                for crash in self.concurrent_crashes {
                    encoder.element(|encoder| crash.encode(encoder));
                }
                encoder.end();
            });
        }
        optional_text(encoder, crash::EXCEPTION_TYPE, self.exception_type);
        optional_text(encoder, crash::LOCATION, self.location);
        optional_text(encoder, crash::MESSAGE, self.message);
        encoder.end();
    }
}

/// An exception of a language runtime, with the stack of its throw.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exception<'a> {
    /// The language.
    pub language: Language,
    /// Type of the exception, demangled or not; the name of an `NSException`.
    pub type_name: Option<&'a [u8]>,
    /// `what()`, the reason, or the panic message.
    pub message: Option<&'a [u8]>,
    /// The thread that threw the exception.
    pub tid: u64,
    /// Source location, `file:line:column`, if the language reports it.
    pub location: Option<&'a [u8]>,
    /// Stack of the throw, innermost first.
    pub frames: &'a [Frame],
    /// The `userInfo` of an `NSException`, described.
    pub user_info: Option<&'a [u8]>,
}

impl Exception<'_> {
    /// Encodes one element of an exceptions section.
    pub fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.begin_map();
        encoder.uint_pair(exception::LANGUAGE, self.language.0.into());
        encoder.uint_pair(exception::TID, self.tid);
        optional_text(encoder, exception::TYPE_NAME, self.type_name);
        optional_text(encoder, exception::MESSAGE, self.message);
        optional_text(encoder, exception::LOCATION, self.location);
        encoder.element(|encoder| {
            encoder.uint(exception::FRAMES);
            encoder.begin_array();
            let mut base = 0;
            for frame in self.frames {
                if !encoder.element(|encoder| frame.encode(encoder, base)) {
                    break;
                }
                base = frame.next_base(base);
            }
            encoder.end();
        });
        optional_text(encoder, exception::USER_INFO, self.user_info);
        encoder.end();
    }
}
