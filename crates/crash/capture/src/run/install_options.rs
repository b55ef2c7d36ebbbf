//! What an app decides about crash time, before anything has happened.

use coroner_process::exception_set::ExceptionSet;
use coroner_process::signal_set::SignalSet;
use coroner_report::run_state::Limits;

/// What happens when a child made by fork or vfork crashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForkPolicy {
    /// The child's crash is reported under a run of its own, made when it crashes.
    #[default]
    Report,
    /// The child's crash is left to whoever handled it before.
    Silent,
}

/// Which threads get an alternate signal stack, without which a stack overflow can't be reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AlternateStacks {
    /// All: the installing thread, those that exist at install (asked by a signal), and later ones if creation is interposed.
    #[default]
    Everywhere,
    /// Only the installing thread and those that call `coroner::attach_current_thread`.
    Attached,
    /// None: the app looks after it.
    Leave,
}

/// What an app decides about crash time.
#[derive(Clone, Copy, Debug)]
pub struct InstallOptions {
    /// The signals that are crashes.
    pub signals: SignalSet,
    /// The Mach exceptions that are crashes (Darwin; without effect elsewhere). Under a debugger none is taken.
    pub exceptions: ExceptionSet,
    /// The signals, other than those of crashes, that are noted in the run state before the process ends of them: where nobody else has them at
    /// install (SIGTERM in any case).
    pub endings: SignalSet,
    /// Whether the handlers that were there before are asked first about every fault, and not only about those that are known to be
    /// theirs: code that a runtime compiled ahead of time needs it.
    pub chain_first: bool,
    /// Whether a signal that another handler has taken is taken back when `coroner_capture::look_at_signals` finds it. That
    /// handler is called after the report, as one from before the install is.
    pub reinstall_handlers: bool,
    /// What becomes of a crash in a child.
    pub fork: ForkPolicy,
    /// Which threads get an alternate stack.
    pub alternate_stacks: AlternateStacks,
    /// Whether all threads are captured, or only the crashed one.
    pub all_threads: bool,
    /// Bytes of stack memory kept of the crashed thread, from its stack pointer upwards. Memory may hold what users
    /// typed; 0 keeps none.
    pub stack_memory: u32,
    /// Whether the used parts of all stacks are kept: of the crashed thread 64 KiB, of the others 16 KiB each and 448 KiB together. In the
    /// place of what [`stack_memory`](Self::stack_memory) says; the file that is reserved is larger by 576 KiB.
    pub stack_memory_all: bool,
    /// Whether names for the report's addresses are looked up in the process's own images, after everything else is written.
    pub symbol_names: bool,
    /// Milliseconds after which a stuck handler is ended with what it has.
    pub deadline_ms: u32,
    /// Bytes of disk reserved at install for the report.
    pub reserve: u32,
    /// Reports of exceptions after which the process goes on that it may write in an hour, as many of them at once; and as many of hangs.
    pub non_fatal_per_hour: u32,
    /// The signal by which other threads are stopped, or none to take a free real-time one.
    pub stop_signal: Option<i32>,
    /// What the run state can hold; its file's size follows.
    pub state: Limits,
}

impl InstallOptions {
    /// The defaults.
    pub const DEFAULT: InstallOptions = InstallOptions {
        signals: SignalSet::CRASHES,
        exceptions: ExceptionSet::CRASHES,
        endings: SignalSet::ENDINGS,
        chain_first: false,
        reinstall_handlers: false,
        fork: ForkPolicy::Report,
        alternate_stacks: AlternateStacks::Everywhere,
        all_threads: true,
        stack_memory: 2048,
        stack_memory_all: false,
        symbol_names: false,
        deadline_ms: 5000,
        reserve: 1 << 20,
        non_fatal_per_hour: 16,
        stop_signal: None,
        state: Limits::DEFAULT,
    };
}

impl Default for InstallOptions {
    fn default() -> Self {
        InstallOptions::DEFAULT
    }
}

/// What was missing at install: a report says less for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct InstallLimits {
    /// There was no room in the store, or no free descriptor: the run is in memory, and a crash brings it to the disk if there
    /// is room by then.
    pub in_memory: bool,
    /// Linux: `/proc/self/task` can't be read. A report has the crashed thread alone, unless it can be read by then.
    pub no_thread_list: bool,
    /// Linux: every real-time signal has a handler (Go's runtime takes all). Threads are stopped by ptrace or not at all, and a live
    /// backtrace of another thread is an error.
    pub no_stop_signal: bool,
    /// Not Linux, Android, macOS, iOS or visionOS, or another processor than x86_64 and arm64: no fault of the process is noticed, and no hang. (On Windows
    /// the feature `windows-crashes` of `coroner` notices faults; there are no hangs all the same.) A report, of a panic or of an error that the app has handled, has the stack of the thread that it is of alone.
    pub no_faults: bool,
}

impl InstallLimits {
    /// Each of them as a sentence.
    pub fn sentences(&self) -> impl Iterator<Item = &'static str> {
        const IN_MEMORY: &str = "there is no room in the store or no free descriptor: a report is kept in memory and saved if there is room when the process crashes";
        const NO_THREAD_LIST: &str =
            "threads can't be listed in /proc/self/task: a report has the crashed thread alone";
        const NO_STOP_SIGNAL: &str = "every real-time signal has a handler: threads are stopped by ptrace where it is allowed, or are not captured";
        const NO_FAULTS: &str = "faults and hangs are not reported on this system: panics and errors that the app handles are, with the stack of their thread";
        let all = [
            (self.in_memory, IN_MEMORY),
            (self.no_thread_list, NO_THREAD_LIST),
            (self.no_stop_signal, NO_STOP_SIGNAL),
            (self.no_faults, NO_FAULTS),
        ];
        all.into_iter().filter_map(|(is_so, sentence)| is_so.then_some(sentence))
    }
}
