//! Install options: what an app decides about crash time in advance.

use coroner_process::exception_set::ExceptionSet;
use coroner_process::signal_set::SignalSet;
use coroner_report::run_state::Limits;

/// Policy for crashes in a child made by fork or vfork.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForkPolicy {
    /// The child's crash is reported under its own run, created when it crashes.
    #[default]
    Report,
    /// The child's crash is left to the earlier handler.
    Silent,
}

/// Selects the threads that get an alternate signal stack, which is required to report a stack
/// overflow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AlternateStacks {
    /// All: the installing thread, those that exist at install (requested by a signal), and later
    /// ones if thread creation is interposed.
    #[default]
    Everywhere,
    /// Only the installing thread and those that call `coroner::attach_current_thread`.
    Attached,
    /// None: the app provides them.
    Leave,
}

/// Options that an app chooses for crash time.
#[derive(Clone, Copy, Debug)]
pub struct InstallOptions {
    /// Signals that are treated as crashes.
    pub signals: SignalSet,
    /// Mach exceptions that are treated as crashes (Darwin; without effect elsewhere). Under a
    /// debugger none is taken.
    pub exceptions: ExceptionSet,
    /// Signals, other than crash signals, that are noted in the run state before the process ends
    /// of them: if there is no other handler for them at install (SIGTERM in any case).
    pub endings: SignalSet,
    /// Whether the earlier handlers are called first for every fault, and not only for those that
    /// are known to be theirs: needed for code that a runtime compiled ahead of time.
    pub chain_first: bool,
    /// Whether a signal that another handler has taken is taken back when
    /// `coroner_capture::look_at_signals` finds it. That handler is called after the report, like
    /// one from before the install.
    pub reinstall_handlers: bool,
    /// Policy for a crash in a child.
    pub fork: ForkPolicy,
    /// The threads that get an alternate stack.
    pub alternate_stacks: AlternateStacks,
    /// Whether all threads are captured, or only the crashed one.
    pub all_threads: bool,
    /// Bytes of stack memory kept of the crashed thread, from its stack pointer upwards. The memory
    /// may contain user input; 0 keeps none.
    pub stack_memory: u32,
    /// Whether the used parts of all stacks are kept: 64 KiB of the crashed thread's, 16 KiB of
    /// each other thread's, and 448 KiB of the others together. Overrides
    /// [`stack_memory`](Self::stack_memory); the reserved file is larger by 576 KiB.
    pub stack_memory_all: bool,
    /// Whether names for the report's addresses are looked up in the process's own images, after
    /// everything else is written.
    pub symbol_names: bool,
    /// Milliseconds after which a stuck handler is ended with what it has.
    pub deadline_ms: u32,
    /// Bytes of disk space reserved at install for the report.
    pub reserve: u32,
    /// Maximum number of non-fatal exception reports per hour (also the burst size). Hangs have a
    /// separate budget of the same size.
    pub non_fatal_per_hour: u32,
    /// Signal for stopping other threads; `None` to choose a free real-time one.
    pub stop_signal: Option<i32>,
    /// Capacity of the run state, which determines its file's size.
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

/// Limitations of an install: what was missing, so that a report contains less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct InstallLimits {
    /// The store had no room, or there was no free descriptor: the run is in memory, and a crash
    /// writes it to disk if there is room by then.
    pub in_memory: bool,
    /// Linux: `/proc/self/task` can't be read. A report has only the crashed thread, unless it can
    /// be read by then.
    pub no_thread_list: bool,
    /// Linux: every real-time signal has a handler (Go's runtime takes all). Threads are stopped by
    /// ptrace or not at all, and a live backtrace of another thread returns an error.
    pub no_stop_signal: bool,
    /// The system isn't Linux, Android, macOS, iOS or visionOS, or the processor is neither x86_64
    /// nor arm64: neither faults nor hangs are detected. (On Windows the feature `windows-crashes`
    /// of `coroner` detects faults, but not hangs.) A report of a panic, or of an error that the
    /// app has handled, has only its own thread's stack.
    pub no_faults: bool,
}

impl InstallLimits {
    /// Returns each limitation as a sentence.
    pub fn sentences(&self) -> impl Iterator<Item = &'static str> {
        const IN_MEMORY: &str = "the store is full or no descriptor is free: a report is kept in memory, and saved if there is space when the process crashes";
        const NO_THREAD_LIST: &str = "can't list threads in /proc/self/task: reports contain only the crashed thread";
        const NO_STOP_SIGNAL: &str = "every real-time signal has a handler: other threads are stopped with ptrace where that is allowed, or not captured";
        const NO_FAULTS: &str = "faults and hangs are not reported on this system; panics and handled errors are, with their thread's stack";
        let all = [
            (self.in_memory, IN_MEMORY),
            (self.no_thread_list, NO_THREAD_LIST),
            (self.no_stop_signal, NO_STOP_SIGNAL),
            (self.no_faults, NO_FAULTS),
        ];
        all.into_iter().filter_map(|(is_so, sentence)| is_so.then_some(sentence))
    }
}
