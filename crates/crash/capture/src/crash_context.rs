//! Crash context: what happened and what becomes of the process, in the report's terms. The monitor
//! that detected the crash fills it in, and nothing later queries the system again.

use coroner_process::context::{self, Context, SignalInfo};
use coroner_process::threads::Tid;
use coroner_process::{registers::Registers, shadow_stack};
use coroner_report::run_state::CrashRecord;
use coroner_report::wire::{Access, Exception, ExtraRegister, Hang, Mach, Monitor, Signal};

use coroner_process::threads::wall_now;

/// The process's fate after the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The process dies of the exception.
    Fatal,
    /// The process dies of the exception, which was already reported as fatal on this thread and
    /// has got worse: the new report replaces the first.
    FatalAgain,
    /// The process continues.
    NonFatal,
}

/// The threads whose stacks a report contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// The threads that Coroner was installed to report.
    AsInstalled,
    /// Only the calling thread; the others are not stopped.
    This,
}

/// An exception to report: everything that [`crate::session`] needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uncaught<'a> {
    pub monitor: Monitor,
    /// The uncaught exception, then its causes.
    pub exceptions: &'a [Exception<'a>],
    pub ending: Ending,
    pub threads: Threads,
}

/// Outcome of reporting a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reported {
    /// This crash has its own report. The value is the number of the crash record in the run state,
    /// 0 for none.
    Here(u64),
    /// Another thread's report contains the crash.
    Elsewhere,
    /// The crash has no report.
    Not,
}

/// The step after a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The process dies: the other threads stay stopped and the lock stays owned.
    Dies,
    /// The app's handler is called (on Darwin by the kernel), which usually ends the process.
    AsksHandler,
    /// The process continues, or the handler that is called may need the other threads.
    RunsOn,
}

#[cfg(target_vendor = "apple")]
impl Reported {
    const NOT: u64 = u64::MAX;
    const ELSEWHERE: u64 = u64::MAX - 1;

    /// Encodes the value as one word, for another thread.
    pub(crate) fn as_word(self) -> u64 {
        match self {
            Reported::Here(number) => number,
            Reported::Elsewhere => Self::ELSEWHERE,
            Reported::Not => Self::NOT,
        }
    }

    /// Decodes a word from [`Reported::as_word`].
    pub(crate) fn of_word(word: u64) -> Reported {
        match word {
            Self::NOT => Reported::Not,
            Self::ELSEWHERE => Reported::Elsewhere,
            number => Reported::Here(number),
        }
    }
}

/// A thread that doesn't respond.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hung {
    pub hang: Hang,
    /// The thread that detected the hang; except on Apple's systems it also writes the report.
    #[cfg_attr(not(target_vendor = "apple"), allow(dead_code))]
    pub watcher: Tid,
}

/// A crash as its monitor describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CrashContext {
    /// The monitor that detected the crash.
    pub monitor: Monitor,
    pub signal: Option<Signal>,
    pub mach: Option<Mach>,
    /// When the crash was detected, in nanoseconds since the Unix epoch. Taken once: by this time
    /// and the thread, the next launch recognizes that the record and the report are of one crash,
    /// however long the process was stopped between the two.
    pub time_ns: u64,
    /// The process's ID; a child made by fork or vfork has a different ID from the run's.
    pub pid: i32,
    /// The thread that crashed or hangs.
    pub tid: Tid,
    /// The thread's registers; none for a hung thread, since it has yet to be stopped.
    pub registers: Registers,
    /// The processor's description of the fault, as registers; only the first `extra_count` are
    /// valid.
    pub extra: [(ExtraRegister, u64); 3],
    pub extra_count: usize,
    /// Shadow stack pointer from [`shadow_stack::of_handler`]; 0 for none.
    pub shadow_stack: u64,
    /// Fault address (avma).
    pub address: Option<u64>,
    /// Kind of the instruction's access to the address, if the processor reports it.
    pub access: Option<Access>,
    /// Whether an instruction of the thread accessed memory that it may not access.
    pub is_memory_fault: bool,
    /// The exception, if a language runtime reported it instead of a signal.
    pub uncaught: Option<&'static Uncaught<'static>>,
    /// The hang, if the report is about one.
    pub hung: Option<Hung>,
}

impl CrashContext {
    /// Creates the context from a signal handler's arguments: the thread's state is `machine`, the
    /// time is `time_ns`.
    pub(crate) fn of_signal(info: &SignalInfo, machine: &Context, (pid, tid): (i32, Tid), time_ns: u64) -> Self {
        let (fault, is_fault) = (machine.fault(), info.is_fault());
        let is_memory_fault = is_fault && matches!(info.signo, libc::SIGSEGV | libc::SIGBUS);
        let address = address_of(info);
        let sender = info.sender();
        #[cfg(target_vendor = "apple")]
        let (syscall, syscall_arch) = (None, None);
        #[cfg(not(target_vendor = "apple"))]
        let (syscall, syscall_arch) = match is_fault && info.signo == libc::SIGSYS {
            true => (Some(info.system_call()), info.foreign_system_call_arch()),
            false => (None, None),
        };
        CrashContext {
            monitor: Monitor::SIGNAL,
            signal: Some(Signal {
                number: info.signo,
                code: info.code,
                errno: info.errno,
                // With the tag, which is needed to understand a memory tagging fault.
                address: address.map(|_| info.address()),
                sender_pid: sender.map(|(pid, _)| pid as u32),
                sender_uid: sender.map(|(_, uid)| uid),
                trap_number: (is_fault && cfg!(target_arch = "x86_64")).then_some(fault.trap),
                error_code: is_fault.then_some(fault.error),
                syscall,
                syscall_arch,
            }),
            mach: None,
            time_ns,
            pid,
            tid,
            registers: machine.registers(),
            extra: extra(machine),
            extra_count: if is_fault { EXTRA } else { 0 },
            shadow_stack: shadow_stack::of_handler(machine),
            address,
            access: is_memory_fault.then(|| access(machine)).flatten(),
            is_memory_fault,
            uncaught: None,
            hung: None,
        }
    }

    /// Creates the context of an exception that a language runtime reported, on a thread with these
    /// registers.
    ///
    /// # Safety
    /// The exception must stay unchanged until the report is written.
    pub(crate) unsafe fn of_exception(uncaught: &Uncaught<'_>, registers: &Registers, pid: i32, tid: Tid) -> Self {
        // SAFETY: by the contract; only the lifetimes differ.
        let uncaught = unsafe { core::mem::transmute::<&Uncaught<'_>, &'static Uncaught<'static>>(uncaught) };
        CrashContext { registers: *registers, ..CrashContext::without_signal(uncaught, pid, tid) }
    }

    /// Creates the context of a thread that doesn't respond.
    pub(crate) fn of_hang(uncaught: &'static Uncaught<'static>, hung: Hung, pid: i32, tid: Tid) -> Self {
        CrashContext { hung: Some(hung), ..CrashContext::without_signal(uncaught, pid, tid) }
    }

    fn without_signal(uncaught: &'static Uncaught<'static>, pid: i32, tid: Tid) -> Self {
        CrashContext {
            monitor: uncaught.monitor,
            signal: None,
            mach: None,
            time_ns: wall_now(),
            pid,
            tid,
            registers: Registers::default(),
            extra: [(ExtraRegister(0), 0); 3],
            extra_count: 0,
            shadow_stack: 0,
            address: None,
            access: None,
            is_memory_fault: false,
            uncaught: Some(uncaught),
            hung: None,
        }
    }

    /// Returns the process's fate after the report.
    pub(crate) fn ending(&self) -> Ending {
        self.uncaught.map_or(Ending::Fatal, |uncaught| uncaught.ending)
    }

    /// Returns the processor's description of the fault.
    pub(crate) fn extra(&self) -> &[(ExtraRegister, u64)] {
        self.extra.get(..self.extra_count).unwrap_or_default()
    }

    /// Returns the crash record for the run state.
    pub(crate) fn record(&self) -> CrashRecord {
        let (signal, mach) = (self.signal.unwrap_or_default(), self.mach);
        CrashRecord {
            monitor: self.monitor,
            signal: mach.map_or(signal.number, |mach| mach.exception),
            code: mach.map_or(signal.code.into(), |mach| mach.code),
            errno: signal.errno,
            address: self.address,
            tid: self.tid as u64,
            time_ns: self.time_ns,
            pc: self.registers.pc,
            sp: self.registers.sp(),
        }
    }
}

/// Returns the run state's crash record of a signal, which a thread with state `context` is
/// handling.
#[cfg(not(target_vendor = "apple"))]
pub(crate) fn record_of_signal(info: &SignalInfo, context: &Context, tid: Tid, time_ns: u64) -> CrashRecord {
    CrashRecord {
        monitor: Monitor::SIGNAL,
        signal: info.signo,
        code: info.code.into(),
        errno: info.errno,
        address: address_of(info),
        tid: tid as u64,
        time_ns,
        pc: context.pc(),
        sp: context.sp(),
    }
}

/// Returns the address that a signal is about, without a pointer's tag, if it is known. For a
/// memory fault, `SI_KERNEL` means that it isn't known (Linux on x86_64: a non-canonical address, a
/// privileged instruction); `BUS_ADRALN` has none there (arch/x86/kernel/traps.c,
/// exc_alignment_check).
pub(crate) fn address_of(info: &SignalInfo) -> Option<u64> {
    /// From asm-generic/siginfo.h. Darwin has no such `si_code`.
    const SI_KERNEL: i32 = 0x80;
    const BUS_ADRALN: i32 = 1;
    let of_fault = matches!(info.signo, libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE | libc::SIGTRAP);
    let is_unaligned = info.signo == libc::SIGBUS && info.code == BUS_ADRALN;
    let is_unsaid =
        info.code == SI_KERNEL || cfg!(all(target_arch = "x86_64", not(target_vendor = "apple"))) && is_unaligned;
    (info.is_fault() && of_fault && !is_unsaid).then(|| info.untagged_address())
}

/// Number of valid entries in [`extra`]. Linux provides no exception number on arm64.
pub(crate) const EXTRA: usize = if cfg!(all(target_arch = "aarch64", not(target_vendor = "apple"))) { 2 } else { 3 };

/// Returns the processor's description of a fault, as registers.
pub(crate) fn extra(machine: &Context) -> [(ExtraRegister, u64); 3] {
    let fault = machine.fault();
    #[cfg(target_arch = "x86_64")]
    return [
        (ExtraRegister::TRAPNO, fault.trap),
        (ExtraRegister::ERR, fault.error),
        (ExtraRegister::CR2, fault.address),
    ];
    #[cfg(target_arch = "aarch64")]
    [(ExtraRegister::ESR, fault.error), (ExtraRegister::FAR, fault.address), (ExtraRegister::EXCEPTION, fault.trap)]
}

/// Returns how the instruction accessed memory, in the report's terms.
pub(crate) fn access(machine: &Context) -> Option<Access> {
    machine.access().map(|access| match access {
        context::Access::Read => Access::READ,
        context::Access::Write => Access::WRITE,
        context::Access::Execute => Access::EXECUTE,
    })
}
