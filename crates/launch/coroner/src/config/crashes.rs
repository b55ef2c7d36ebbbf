//! What a crash does.

use crate::SignalSet;
use crate::system::capture::{AlternateStacks, ForkPolicy, InstallOptions};

use super::group::group;

group! {
    /// What happens when the process crashes: which signals are crashes, who is asked first, and what is in a report. The defaults are good for nearly every app.
    /// You need this
    /// * beside another crash handler or a language runtime ([`chain_first`](Self::chain_first), [`reinstall_handlers`](Self::reinstall_handlers),
    ///   [`signals`](Self::signals)),
    /// * where a report may hold less of what users typed ([`stack_memory(0)`](Self::stack_memory)), or should hold more for a debugger
    ///   ([`stack_memory_all`](Self::stack_memory_all)),
    /// * where threads manage signal stacks themselves ([`alternate_stacks`](Self::alternate_stacks)).
    ///
    /// ```
    /// use coroner::{Config, Crashes};
    ///
    /// let config = Config::new("com.example.paint").crashes(Crashes::new().stack_memory(0).reinstall_handlers(true));
    /// ```
    Crashes
    fields {}
    options {
        /// The signals that are crashes. Default: [`SignalSet::CRASHES`] (SEGV, BUS, ILL, FPE, ABRT, TRAP, SYS).
        signals: SignalSet = InstallOptions::DEFAULT.signals,
        /// The signals that are noted when they end the process, so that the run's outcome is
        /// [`Outcome::Terminated`](crate::Outcome::Terminated) (SIGTERM) or [`Outcome::EndedBySignal`](crate::Outcome::EndedBySignal), and not an
        /// unexplained end. They are no crashes, and end the process as they would have; a signal that is ignored, or has a handler, at install is
        /// left alone. Default: [`SignalSet::ENDINGS`] (TERM, INT, HUP, QUIT, PIPE, ALRM, XCPU, XFSZ, USR1, USR2), without INT where Python is in the process and
        /// not initialised: it takes Ctrl-C only where nobody else has.
        endings: SignalSet = InstallOptions::DEFAULT.endings,
        /// Whether the handlers that were installed before are asked first about every fault, and a crash is reported only if they don't
        /// take it. Default: no. Faults of code that a runtime compiled while the app runs (JVM, .NET, Node, wasmtime), of Go code, and
        /// system calls that a seccomp filter traps are left to their handlers without this: it is for code that a runtime compiled ahead of
        /// time. `docs/neighbours.md` says what order is best for which app.
        chain_first: bool = InstallOptions::DEFAULT.chain_first,
        /// Whether a crash signal that another handler has taken after the install, without calling Coroner's, is taken back; that handler
        /// is called after the report. Coroner looks when it delivers and when a breadcrumb is left, at most once a second, and logs in
        /// any case who has the signal. Default: no.
        reinstall_handlers: bool = InstallOptions::DEFAULT.reinstall_handlers,
        /// What a crash of a child made by `fork` does. Default: it is reported, under a run of its own.
        fork: ForkPolicy = InstallOptions::DEFAULT.fork,
        /// Which threads get an alternate signal stack, without which a stack overflow can't be reported. Default: all.
        alternate_stacks: AlternateStacks = InstallOptions::DEFAULT.alternate_stacks,
        /// Whether all threads are in a report, or only the crashed one. Default: all.
        all_threads: bool = InstallOptions::DEFAULT.all_threads,
        /// How many bytes of the crashed thread's stack, from its stack pointer up, are in a report. With them come 256 to 512 bytes around each
        /// address that is in one of its registers. They may hold what users typed. Default: 2048; 0 for neither.
        stack_memory: u32 = InstallOptions::DEFAULT.stack_memory,
        /// Whether the used parts of all threads' stacks are in a report, so that a debugger or `minidump-stackwalk` can walk a minidump
        /// made of it as far as the report's own frames go: 64 KiB of the crashed thread, 16 KiB of each other, 448 KiB of the others together.
        /// They may hold what users typed. The reserved file is larger by 576 KiB. In the place of [`stack_memory`](Self::stack_memory).
        /// Default: no.
        stack_memory_all: bool = InstallOptions::DEFAULT.stack_memory_all,
        /// Whether the dying process looks up names for the report's addresses in its own images, when everything else is on disk.
        /// They are used where no symbol file is found at the next launch or at a server: for the system's libraries, above all.
        /// It takes milliseconds, and longer in a large program. Default: only on Apple's systems, whose libraries have their
        /// symbols nowhere but in memory.
        symbol_names: bool = cfg!(target_vendor = "apple"),
    }
}
