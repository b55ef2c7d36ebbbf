//! Options for what happens at a crash.

use crate::SignalSet;
use crate::system::capture::{AlternateStacks, ForkPolicy, InstallOptions};

use super::group::group;

group! {
    /// Options for crashes: signals, other handlers, and the contents of a report.
    ///
    /// The defaults suit nearly every app. Change them
    /// * beside another crash handler or a language runtime ([`chain_first`](Self::chain_first),
    ///   [`reinstall_handlers`](Self::reinstall_handlers), [`signals`](Self::signals)),
    /// * if a report must not contain user input ([`stack_memory(0)`](Self::stack_memory)), or
    ///   should contain more for a debugger ([`stack_memory_all`](Self::stack_memory_all)),
    /// * if threads manage signal stacks themselves ([`alternate_stacks`](Self::alternate_stacks)).
    ///
    /// ```
    /// use coroner::{Config, Crashes};
    ///
    /// let config = Config::new("com.example.paint").crashes(Crashes::new().stack_memory(0).reinstall_handlers(true));
    /// ```
    Crashes
    fields {}
    options {
        /// Sets the signals that are reported as crashes.
        ///
        /// Default: [`SignalSet::CRASHES`] (SEGV, BUS, ILL, FPE, ABRT, TRAP, SYS).
        signals: SignalSet = InstallOptions::DEFAULT.signals,
        /// Sets the signals that are recorded when they terminate the process.
        ///
        /// The run's outcome is then [`Outcome::Terminated`](crate::Outcome::Terminated) (SIGTERM)
        /// or [`Outcome::EndedBySignal`](crate::Outcome::EndedBySignal) instead of unknown. These
        /// signals are not crashes, and terminate the process as they would have without Coroner. A
        /// signal that is ignored or has a handler at install is left unchanged.
        ///
        /// Default: [`SignalSet::ENDINGS`] (TERM, INT, HUP, QUIT, PIPE, ALRM, XCPU, XFSZ, USR1,
        /// USR2), without INT if Python is in the process and not initialized: Python takes over
        /// Ctrl-C only if the signal still has its default action.
        endings: SignalSet = InstallOptions::DEFAULT.endings,
        /// Sets whether earlier handlers are called first for every fault. Default: no.
        ///
        /// If so, only faults that they don't handle are reported. This is needed for code that a
        /// runtime compiled ahead of time. It isn't needed for code that a runtime compiles while
        /// the app runs (JVM, .NET, Node, wasmtime), for Go code, and for system calls trapped by a
        /// seccomp filter: these faults are left to their handlers anyway. `docs/neighbours.md`
        /// lists the best order for each kind of app.
        chain_first: bool = InstallOptions::DEFAULT.chain_first,
        /// Sets whether to take back crash signals whose handlers are replaced after install.
        ///
        /// Default: no. A replacing handler that doesn't call Coroner's prevents reports. If this
        /// is set, that handler is called after the report. A thread of Coroner then checks 10 and
        /// 100 ms after install and every second, and each fork does. Otherwise Coroner checks only
        /// when it delivers and when a breadcrumb is added, at most once a second. It always logs
        /// which handler has the signal.
        reinstall_handlers: bool = InstallOptions::DEFAULT.reinstall_handlers,
        /// Sets whether crashes of children created by `fork` are reported.
        ///
        /// Default: they are, each as its own run.
        fork: ForkPolicy = InstallOptions::DEFAULT.fork,
        /// Sets which threads get an alternate signal stack. Default: all.
        ///
        /// Without one, a stack overflow can't be reported.
        alternate_stacks: AlternateStacks = InstallOptions::DEFAULT.alternate_stacks,
        /// Sets whether a report contains all threads or only the crashed one. Default: all.
        all_threads: bool = InstallOptions::DEFAULT.all_threads,
        /// Sets how many bytes of the crashed thread's stack a report contains.
        ///
        /// Default: 2048, starting at the stack pointer; 0 for none. Unless it is 0, the report
        /// also contains 256 to 512 bytes around each address in the thread's registers. This
        /// memory may contain user input.
        stack_memory: u32 = InstallOptions::DEFAULT.stack_memory,
        /// Sets whether a report contains the used parts of all threads' stacks. Default: no.
        ///
        /// A debugger or `minidump-stackwalk` can then walk a minidump made from the report as far
        /// as the report's own frames. The limits are 64 KiB for the crashed thread, 16 KiB for
        /// each other thread, and 448 KiB for the others together. This memory may contain user
        /// input. The reserved file is 576 KiB larger. Replaces
        /// [`stack_memory`](Self::stack_memory).
        stack_memory_all: bool = InstallOptions::DEFAULT.stack_memory_all,
        /// Sets whether the crashing process looks up symbol names in its own images.
        ///
        /// Default: only on Apple systems, where the system libraries' symbols are available
        /// nowhere else. The lookup runs after the rest of the report is on disk, and takes
        /// milliseconds, longer in a large program. The names are used if neither the next launch
        /// nor a server finds a symbol file.
        symbol_names: bool = cfg!(target_vendor = "apple"),
    }
}
