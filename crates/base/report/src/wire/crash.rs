//! What happened: the header, the crash and the language exceptions behind it.

use super::encoder::{Encoder, optional, optional_int, optional_text, optional_uint};
use super::keys::{concurrent_crash, crash, exception, hang, header, mach_exception, signal};
use super::numbers::{Access, Language, Monitor, Os};
use super::thread::Frame;
use coroner_process::registers::Arch;

/// Identity of a report. The first section, so that even a file cut right after it can be attributed.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a> {
    /// [`FORMAT_VERSION`](super::FORMAT_VERSION).
    pub format_version: u32,
    /// The run (one `install`) that died; names its directory and its run state.
    pub run_id: [u8; 16],
    /// Identity of the event, a version 4 UUID, made at install so that it stays the same over retries of sending.
    pub event_id: [u8; 16],
    /// Process id.
    pub pid: u32,
    /// Parent's process id.
    pub ppid: u32,
    /// Architecture of the process; `None` for one that no report has registers of.
    pub arch: Option<Arch>,
    /// Operating system.
    pub os: Os,
    /// Size of a page in bytes.
    pub page_size: u32,
    /// Bits of a pointer that are no address but a pointer authentication code (arm64); 0 where there is none.
    pub pointer_auth_mask: u64,
    /// Version of Coroner, such as `0.1.0`.
    pub sdk_version: &'a [u8],
    /// Start of the process, nanoseconds since the Unix epoch.
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

/// A POSIX signal, as `siginfo_t` and the context have it; on Windows an exception, or a signal of the C runtime.
#[derive(Clone, Copy, Debug, Default)]
pub struct Signal {
    /// `si_signo`, in the numbering of the header's system. On Windows the exception's code (`0xC0000005`), or the C runtime's SIGABRT.
    pub number: i32,
    /// `si_code`.
    pub code: i32,
    /// `si_errno`.
    pub errno: i32,
    /// `si_addr`, for signals that have one.
    pub address: Option<u64>,
    /// `si_pid`: who sent it, for signals that a process sent.
    pub sender_pid: Option<u32>,
    /// `si_uid`.
    pub sender_uid: Option<u32>,
    /// x86_64: number of the exception vector (`REG_TRAPNO`).
    pub trap_number: Option<u64>,
    /// x86_64: the exception's error code (`REG_ERR`); arm64: the exception syndrome (`ESR`).
    pub error_code: Option<u64>,
    /// SIGSYS: number of the system call that a filter refused.
    pub syscall: Option<i32>,
    /// SIGSYS: `si_arch` (`AUDIT_ARCH_…`), where it is not the process's own: the number is of another table then.
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

/// A Mach exception, as its message has it (`mach/exception_types.h`).
#[derive(Clone, Copy, Debug, Default)]
pub struct Mach {
    /// The exception: `EXC_BAD_ACCESS` is 1, and so on.
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
    /// The thread.
    pub tid: u64,
    /// Its signal, 0 where it came another way.
    pub signal: i32,
    /// Its `si_code`.
    pub code: i32,
    /// Its `si_addr`.
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

/// A thread that did not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hang {
    /// Which hang of the run it is, 0 being the first. How long it lasted is in the run state, under
    /// [`Scalar::hang_duration`](crate::run_state::Scalar::hang_duration) of this number.
    pub number: u8,
    /// How long it had lasted when the report was begun, in nanoseconds in which the process ran.
    pub lasted_ns: u64,
}

impl Hang {
    fn encode(self, encoder: &mut Encoder<'_>) {
        encoder.map(hang::REQUIRED);
        encoder.uint_pair(hang::NUMBER, self.number.into());
        encoder.uint_pair(hang::LASTED, self.lasted_ns);
    }
}

/// Facts of a crash that are true or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrashFlags(pub u32);

impl CrashFlags {
    /// The stack had no room left.
    pub const STACK_OVERFLOW: CrashFlags = CrashFlags(1);
    /// The crash path itself crashed; this report is about the first crash as far as it was written.
    pub const RECRASH: CrashFlags = CrashFlags(1 << 1);
    /// The process went on after this report (a handled exception, a hang that ended).
    pub const NOT_FATAL: CrashFlags = CrashFlags(1 << 2);
    /// The stack pointer was in no readable memory.
    pub const BAD_STACK_POINTER: CrashFlags = CrashFlags(1 << 3);
    /// A child after `fork` that runs under its parent's install.
    pub const FORK_CHILD: CrashFlags = CrashFlags(1 << 4);

    /// Both sets.
    #[must_use]
    pub const fn with(self, other: CrashFlags) -> CrashFlags {
        CrashFlags(self.0 | other.0)
    }

    /// Whether all of `other` are set.
    pub const fn has(self, other: CrashFlags) -> bool {
        self.0 & other.0 == other.0
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Crash<'a> {
    /// When: nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// When: nanoseconds since install, by the monotonic clock.
    pub since_install_ns: u64,
    /// What noticed it.
    pub monitor: Monitor,
    /// The signal, if there was one.
    pub signal: Option<Signal>,
    /// The Mach exception, if there was one.
    pub mach: Option<Mach>,
    /// The thread that crashed.
    pub tid: u64,
    /// Facts that are true or not.
    pub flags: CrashFlags,
    /// What the faulting instruction did, where the processor says.
    pub access: Option<Access>,
    /// The address that the fault is about, as exactly as is known (`si_addr`, FAR, CR2 or from the instruction).
    pub address: Option<u64>,
    /// Other threads that crashed too, by the time this section was written. Later ones: write the section again.
    pub concurrent_crashes: &'a [ConcurrentCrash],
    /// The message of an abort, an assertion, a panic.
    pub message: Option<&'a [u8]>,
    /// Type of the uncaught exception, demangled or not.
    pub exception_type: Option<&'a [u8]>,
    /// Source location of a panic or an assertion: `file:line:column`.
    pub location: Option<&'a [u8]>,
    /// The hang, if the report is of one: `tid` is then the thread that did not answer.
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

/// An exception of a language's runtime, with the stack of its throw.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exception<'a> {
    /// The language.
    pub language: Language,
    /// Its type, demangled or not; the name of an `NSException`.
    pub type_name: Option<&'a [u8]>,
    /// `what()`, the reason, the panic message.
    pub message: Option<&'a [u8]>,
    /// The thread that threw it.
    pub tid: u64,
    /// `file:line:column`, where the language says.
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
