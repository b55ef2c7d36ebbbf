//! What happened and what becomes of the process, in the words of the report: the monitor that noticed it fills this in, and nothing
//! later asks the system again.

use coroner_process::context::{self, Context, SignalInfo};
use coroner_process::threads::Tid;
use coroner_process::{registers::Registers, shadow_stack};
use coroner_report::run_state::CrashRecord;
use coroner_report::wire::{Access, Exception, ExtraRegister, Hang, Mach, Monitor, Signal};

use coroner_process::threads::wall_now;

/// What becomes of the process after the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It dies of the exception.
    Fatal,
    /// It dies of the exception, which was reported as fatal already on this thread and has grown worse: the new report takes
    /// the place of the first.
    FatalAgain,
    /// It goes on.
    NonFatal,
}

/// Whose stacks a report has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// Those of the threads that Coroner was installed to report.
    AsInstalled,
    /// The calling thread's alone; the others are not stopped.
    This,
}

/// An exception for a report: what [`crate::session`] needs to know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uncaught<'a> {
    pub monitor: Monitor,
    /// The one that nobody caught, then what caused it.
    pub exceptions: &'a [Exception<'a>],
    pub ending: Ending,
    pub threads: Threads,
}

/// What became of a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reported {
    /// There is a report of it. The number is that of the crash record in the run state, 0 for none.
    Here(u64),
    /// Another thread's report has it.
    Elsewhere,
    /// There is none.
    Not,
}

/// What follows a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The process dies: the other threads stay stopped and the lock stays owned.
    Dies,
    /// A handler of the app is asked (on Darwin by the kernel), which most often ends the process.
    AsksHandler,
    /// The process goes on, or who is asked may need the other threads.
    RunsOn,
}

#[cfg(target_vendor = "apple")]
impl Reported {
    const NOT: u64 = u64::MAX;
    const ELSEWHERE: u64 = u64::MAX - 1;

    /// As one word, for another thread.
    pub(crate) fn as_word(self) -> u64 {
        match self {
            Reported::Here(number) => number,
            Reported::Elsewhere => Self::ELSEWHERE,
            Reported::Not => Self::NOT,
        }
    }

    /// What [`Reported::as_word`] returned.
    pub(crate) fn of_word(word: u64) -> Reported {
        match word {
            Self::NOT => Reported::Not,
            Self::ELSEWHERE => Reported::Elsewhere,
            number => Reported::Here(number),
        }
    }
}

/// A thread that does not answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hung {
    pub hang: Hang,
    /// The thread that noticed it; elsewhere than on Apple's systems it is the one that writes.
    #[cfg_attr(not(target_vendor = "apple"), allow(dead_code))]
    pub watcher: Tid,
}

/// A crash as its monitor knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CrashContext {
    /// Who noticed it.
    pub monitor: Monitor,
    pub signal: Option<Signal>,
    pub mach: Option<Mach>,
    /// When it was noticed, in nanoseconds since the Unix epoch. Taken once: by it, and by the thread, the next launch knows that the
    /// record and the report are of one crash, however long the process was stopped between the two.
    pub time_ns: u64,
    /// The process: a child made by fork or vfork has another id than the run.
    pub pid: i32,
    /// The thread that crashed, or hangs.
    pub tid: Tid,
    /// Its registers; of one that hangs none, since it has yet to be stopped.
    pub registers: Registers,
    /// What the processor said of the fault, as registers; the first `extra_count` are meant.
    pub extra: [(ExtraRegister, u64); 3],
    pub extra_count: usize,
    /// The shadow stack, as [`shadow_stack::of_handler`] has it; 0 for none.
    pub shadow_stack: u64,
    /// The address that the fault is about (avma).
    pub address: Option<u64>,
    /// What the instruction did to it, where the processor says so.
    pub access: Option<Access>,
    /// An instruction of the thread touched memory that it may not touch.
    pub is_memory_fault: bool,
    /// The exception that it is about, where a language's runtime reported it and no signal.
    pub uncaught: Option<&'static Uncaught<'static>>,
    /// The hang that it is.
    pub hung: Option<Hung>,
}

impl CrashContext {
    /// What the kernel gave a signal's handler, on a thread with that state, at that time.
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
                // With the tag, by which a memory tagging fault is understood.
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

    /// An exception that a language's runtime reported, on a thread with these registers.
    ///
    /// # Safety
    /// The exception must stay as it is until the report is written.
    pub(crate) unsafe fn of_exception(uncaught: &Uncaught<'_>, registers: &Registers, pid: i32, tid: Tid) -> Self {
        // SAFETY: by the contract; only the lifetimes differ.
        let uncaught = unsafe { core::mem::transmute::<&Uncaught<'_>, &'static Uncaught<'static>>(uncaught) };
        CrashContext { registers: *registers, ..CrashContext::without_signal(uncaught, pid, tid) }
    }

    /// A thread that does not answer.
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

    /// What becomes of the process.
    pub(crate) fn ending(&self) -> Ending {
        self.uncaught.map_or(Ending::Fatal, |uncaught| uncaught.ending)
    }

    /// What the processor said of the fault.
    pub(crate) fn extra(&self) -> &[(ExtraRegister, u64)] {
        self.extra.get(..self.extra_count).unwrap_or_default()
    }

    /// What the run state keeps of it.
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

/// What the run state keeps of a signal, which a thread with that state is handling.
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

/// The address that a signal is about, without a pointer's tag, if it is known. `SI_KERNEL` says of a memory fault that it is not (Linux on x86_64: a
/// non-canonical address, a privileged instruction); `BUS_ADRALN` has none there (arch/x86/kernel/traps.c, exc_alignment_check).
pub(crate) fn address_of(info: &SignalInfo) -> Option<u64> {
    /// asm-generic/siginfo.h. No `si_code` of Darwin's.
    const SI_KERNEL: i32 = 0x80;
    const BUS_ADRALN: i32 = 1;
    let of_fault = matches!(info.signo, libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE | libc::SIGTRAP);
    let is_unaligned = info.signo == libc::SIGBUS && info.code == BUS_ADRALN;
    let is_unsaid =
        info.code == SI_KERNEL || cfg!(all(target_arch = "x86_64", not(target_vendor = "apple"))) && is_unaligned;
    (info.is_fault() && of_fault && !is_unsaid).then(|| info.untagged_address())
}

/// So many of [`extra`] are known. Linux has no number of the exception on arm64.
pub(crate) const EXTRA: usize = if cfg!(all(target_arch = "aarch64", not(target_vendor = "apple"))) { 2 } else { 3 };

/// What the processor said of a fault, as registers.
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

/// How the instruction touched memory, as the report has it.
pub(crate) fn access(machine: &Context) -> Option<Access> {
    machine.access().map(|access| match access {
        context::Access::Read => Access::READ,
        context::Access::Write => Access::WRITE,
        context::Access::Execute => Access::EXECUTE,
    })
}
