//! What happened: the header, the crash and the language exceptions behind it.

use super::encoder::Encoder;
use super::numbers::{Access, Language, Monitor, Os};
use super::thread::Frame;
use coroner_machine::registers::Arch;

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
    /// Architecture of the process.
    pub arch: Arch,
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
        encoder.map(12);
        encoder.uint(0);
        encoder.uint(self.format_version.into());
        encoder.uint(1);
        encoder.bytes(&self.run_id);
        encoder.uint(2);
        encoder.bytes(&self.event_id);
        encoder.uint(3);
        encoder.uint(self.pid.into());
        encoder.uint(4);
        encoder.uint(self.ppid.into());
        encoder.uint(5);
        encoder.uint(u64::from(self.arch as u8));
        encoder.uint(6);
        encoder.uint(self.os.0.into());
        encoder.uint(7);
        encoder.uint(self.page_size.into());
        encoder.uint(8);
        encoder.uint(self.pointer_auth_mask);
        encoder.uint(9);
        encoder.text(self.sdk_version);
        encoder.uint(10);
        encoder.uint(self.process_start_ns);
        encoder.uint(11);
        encoder.text(self.process_name);
    }
}

/// A POSIX signal, as `siginfo_t` and the context told it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Signal {
    /// `si_signo`, in the numbering of the header's system.
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
}

impl Signal {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.begin_map();
        encoder.uint(0);
        encoder.int(self.number.into());
        encoder.uint(1);
        encoder.int(self.code.into());
        encoder.uint(2);
        encoder.int(self.errno.into());
        optional_uint(encoder, 3, self.address);
        optional_uint(encoder, 4, self.sender_pid.map(u64::from));
        optional_uint(encoder, 5, self.sender_uid.map(u64::from));
        optional_uint(encoder, 6, self.trap_number);
        optional_uint(encoder, 7, self.error_code);
        optional_int(encoder, 8, self.syscall.map(i64::from));
        encoder.end();
    }
}

/// A Mach exception, as its message told it (`mach/exception_types.h`).
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
        encoder.map(3);
        encoder.uint(0);
        encoder.int(self.exception.into());
        encoder.uint(1);
        encoder.int(self.code);
        encoder.uint(2);
        encoder.int(self.subcode);
    }
}

/// Another thread that crashed while this report was being written.
#[derive(Clone, Copy, Debug, Default)]
pub struct SecondCrash {
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

impl SecondCrash {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.begin_map();
        encoder.uint(0);
        encoder.uint(self.tid);
        encoder.uint(1);
        encoder.int(self.signal.into());
        encoder.uint(2);
        encoder.int(self.code.into());
        optional_uint(encoder, 3, self.address);
        optional_uint(encoder, 4, self.after_ns);
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
        encoder.map(2);
        encoder.uint(0);
        encoder.uint(self.number.into());
        encoder.uint(1);
        encoder.uint(self.lasted_ns);
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
    /// What the faulting instruction did, where the processor told.
    pub access: Option<Access>,
    /// The address that the fault is about, as exactly as is known (`si_addr`, FAR, CR2 or from the instruction).
    pub address: Option<u64>,
    /// Other threads that crashed too, by the time this section was written. Later ones: write the section again.
    pub second_crashes: &'a [SecondCrash],
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
        encoder.uint(0);
        encoder.uint(self.time_ns);
        encoder.uint(1);
        encoder.uint(self.since_install_ns);
        encoder.uint(2);
        encoder.uint(self.monitor.0.into());
        encoder.uint(5);
        encoder.uint(self.tid);
        encoder.uint(6);
        encoder.uint(self.flags.0.into());
        optional_uint(encoder, 7, self.access.map(|access| access.0.into()));
        optional_uint(encoder, 8, self.address);
        if let Some(signal) = &self.signal {
            encoder.element(|encoder| {
                encoder.uint(3);
                signal.encode(encoder);
            });
        }
        if let Some(mach) = &self.mach {
            encoder.element(|encoder| {
                encoder.uint(4);
                mach.encode(encoder);
            });
        }
        if let Some(hang) = self.hang {
            encoder.element(|encoder| {
                encoder.uint(13);
                hang.encode(encoder);
            });
        }
        if !self.second_crashes.is_empty() {
            encoder.element(|encoder| {
                encoder.uint(9);
                encoder.begin_array();
                for crash in self.second_crashes {
                    encoder.element(|encoder| crash.encode(encoder));
                }
                encoder.end();
            });
        }
        optional_text(encoder, 11, self.exception_type);
        optional_text(encoder, 12, self.location);
        optional_text(encoder, 10, self.message);
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
    /// `file:line:column`, where the language tells.
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
        encoder.uint(0);
        encoder.uint(self.language.0.into());
        encoder.uint(3);
        encoder.uint(self.tid);
        optional_text(encoder, 1, self.type_name);
        optional_text(encoder, 2, self.message);
        optional_text(encoder, 4, self.location);
        encoder.element(|encoder| {
            encoder.uint(5);
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
        optional_text(encoder, 6, self.user_info);
        encoder.end();
    }
}

/// A pair of an indefinite map, if there is a value and it fits.
pub(super) fn optional_uint(encoder: &mut Encoder<'_>, key: u64, value: Option<u64>) {
    if let Some(value) = value {
        encoder.element(|encoder| {
            encoder.uint(key);
            encoder.uint(value);
        });
    }
}

/// A pair of an indefinite map, if there is a value and it fits.
pub(super) fn optional_int(encoder: &mut Encoder<'_>, key: u64, value: Option<i64>) {
    if let Some(value) = value {
        encoder.element(|encoder| {
            encoder.uint(key);
            encoder.int(value);
        });
    }
}

/// A pair of an indefinite map, if there is a text and it fits.
pub(super) fn optional_text(encoder: &mut Encoder<'_>, key: u64, text: Option<&[u8]>) {
    if let Some(text) = text {
        encoder.element(|encoder| {
            encoder.uint(key);
            encoder.text(text);
        });
    }
}
