//! The enumerations of the format. All are open: a reader keeps numbers it doesn't know.

use crate::open_numbers::open_numbers;

open_numbers! {
    /// Kind of a section. Several sections of one kind are batches of the same list.
    SectionKind(u16) {
        /// Identity of the report: [`Header`](super::Header). Always first.
        HEADER = 1 "header",
        /// The crash itself: [`Crash`](super::Crash).
        CRASH = 2 "crash",
        /// A batch of [`Thread`](super::Thread)s, an array. The crashed thread comes in the first
        /// batch.
        THREADS = 3 "threads",
        /// A batch of [`Image`](super::Image)s, an array.
        IMAGES = 4 "images",
        /// A batch of [`StackMemory`](super::StackMemory), an array.
        STACK_MEMORY = 5 "stack_memory",
        /// A batch of [`SymbolName`](super::SymbolName)s, an array.
        SYMBOL_NAMES = 6 "symbol_names",
        /// The fault that ended another section: [`Fault`](super::Fault).
        FAULT = 7 "fault",
        /// The end of a finished report: [`End`](super::End). Always last.
        END = 8 "end",
        /// A batch of language [`Exception`](super::Exception)s, an array: outermost first.
        EXCEPTIONS = 9 "exceptions",
        /// A batch of [`Annotation`](super::Annotation)s, an array.
        ANNOTATIONS = 10 "annotations",
        /// The run's [run state](crate::run_state) file, a byte string.
        ///
        /// Zeros at its end may be omitted. The crash path doesn't write this section: it is added
        /// when a report leaves its run's directory.
        RUN_STATE = 11 "run_state",
        /// The system's own report of the crash, found at the next launch, a byte string.
        ///
        /// It is a line of JSON followed by the trace that came with it. It is added together with
        /// the run state. A reader keeps it among
        /// [`unknown_sections`](crate::model::Report::unknown_sections), and the crate `coroner`
        /// uses it to complete the report.
        SYSTEM_REPORT = 12 "system_report",
        /// A batch of [`ReplacedImage`](super::ReplacedImage)s, an array.
        REPLACED_IMAGES = 13 "replaced_images",
        /// A batch of [`Code`](super::Code), an array: code that the crashed thread ran.
        CODE = 14 "code",
        /// A batch of [`Mapping`](super::Mapping)s, an array: at or next to the fault's address.
        MAPPINGS = 15 "mappings",
        /// A batch of [`AppMemory`](super::AppMemory), an array: memory that the app registered.
        APP_MEMORY = 16 "app_memory",
        /// A batch of [`Zombie`](super::Zombie)s, an array.
        ///
        /// Deallocated Objective-C objects that the crashed thread's registers lead to.
        ZOMBIES = 17 "zombies",
        /// The samples of a hang: [`Profile`](super::Profile), after the end. The last one is used.
        PROFILE = 20 "profile",
    }
}

open_numbers! {
    /// An operating system.
    Os(u8) {
        /// Linux other than Android.
        LINUX = 1 "linux",
        /// Android.
        ANDROID = 2 "android",
        /// macOS.
        MACOS = 3 "macos",
        /// iOS and iPadOS.
        IOS = 4 "ios",
        /// tvOS.
        TVOS = 5 "tvos",
        /// watchOS.
        WATCHOS = 6 "watchos",
        /// visionOS.
        VISIONOS = 7 "visionos",
        /// Windows.
        WINDOWS = 8 "windows",
        /// FreeBSD.
        FREEBSD = 9 "freebsd",
    }
}

impl Os {
    /// The system that this code was compiled for.
    pub const NATIVE: Os = if cfg!(target_os = "android") {
        Os::ANDROID
    } else if cfg!(any(target_os = "macos", target_abi = "macabi")) {
        Os::MACOS
    } else if cfg!(target_os = "ios") {
        Os::IOS
    } else if cfg!(target_os = "tvos") {
        Os::TVOS
    } else if cfg!(target_os = "watchos") {
        Os::WATCHOS
    } else if cfg!(target_os = "visionos") {
        Os::VISIONOS
    } else if cfg!(target_os = "linux") {
        Os::LINUX
    } else if cfg!(windows) {
        Os::WINDOWS
    } else if cfg!(target_os = "freebsd") {
        Os::FREEBSD
    } else {
        Os(0)
    };

    /// Whether the system is one of Apple's.
    pub const fn is_apple(self) -> bool {
        matches!(self, Os::MACOS | Os::IOS | Os::TVOS | Os::WATCHOS | Os::VISIONOS)
    }
}

open_numbers! {
    /// The monitor that noticed the crash.
    Monitor(u8) {
        /// A POSIX signal handler.
        SIGNAL = 1 "signal",
        /// A Mach exception port.
        MACH = 2 "mach",
        /// The C++ terminate handler.
        CPP_EXCEPTION = 3 "cpp_exception",
        /// The uncaught Objective-C exception handler.
        NS_EXCEPTION = 4 "nsexception",
        /// The Rust panic hook.
        PANIC = 5 "panic",
        /// The hang monitor.
        HANG = 6 "hang",
        /// The app itself, which requested this report.
        USER = 7 "user",
        /// Windows: the unhandled exception filter, or the C runtime's SIGABRT.
        ///
        /// [`Signal`](super::Signal) has the exception's code as its number.
        SEH = 8 "seh",
    }
}

open_numbers! {
    /// A faulting instruction's memory access.
    Access(u8) {
        /// A read.
        READ = 1 "read",
        /// A write.
        WRITE = 2 "write",
        /// An instruction fetch.
        EXECUTE = 3 "execute",
    }
}

open_numbers! {
    /// Scheduling state of a thread when it was captured.
    ThreadState(u8) {
        /// On a processor or ready for one (Linux `R`, Mach `TH_STATE_RUNNING`).
        RUNNING = 1 "running",
        /// Asleep in a wait that a signal interrupts: most blocking system calls.
        ///
        /// Linux `S`, Mach `TH_STATE_WAITING`.
        BLOCKED = 2 "blocked",
        /// Asleep in an uninterruptible wait (Linux `D`, Mach `TH_STATE_UNINTERRUPTIBLE`).
        UNINTERRUPTIBLE = 3 "uninterruptible",
        /// Stopped by a signal or a debugger (Linux `T`/`t`, Mach `TH_STATE_STOPPED`).
        STOPPED = 4 "stopped",
        /// Halted at a clean point (Mach `TH_STATE_HALTED`) or idle (Linux `I`).
        IDLE = 5 "idle",
        /// Exited while it was being captured (Linux `Z`/`X`).
        ENDED = 6 "ended",
        /// Ready for a processor but not given one (samples only, if distinguishable from running).
        RUNNABLE = 7 "runnable",
    }
}

open_numbers! {
    /// Source of a thread's registers.
    CaptureMethod(u8) {
        /// The context of the signal or exception that is being reported.
        CRASH_CONTEXT = 1 "crash_context",
        /// The thread handed over its own context in a signal handler.
        SIGNAL = 2 "signal",
        /// A `ptrace` helper.
        PTRACE = 3 "ptrace",
        /// `thread_get_state` (Mach).
        MACH = 4 "mach",
    }
}

open_numbers! {
    /// Why a thread has no registers and no frames.
    NotCaptured(u8) {
        /// The thread did not answer the capture signal before the deadline.
        ///
        /// There was no other way to capture it.
        NO_ANSWER = 1 "no_answer",
        /// The thread blocks the capture signal, and no helper could read it.
        SIGNAL_BLOCKED = 2 "signal_blocked",
        /// The thread was in an uninterruptible wait, and no helper could read it.
        UNINTERRUPTIBLE = 3 "uninterruptible",
        /// The thread exited before it was captured.
        ENDED = 4 "ended",
        /// The system denied access (`EPERM`: a sandbox, Yama).
        DENIED = 5 "denied",
        /// There were more threads than slots.
        LIMIT = 6 "limit",
        /// The report's deadline passed first.
        DEADLINE = 7 "deadline",
        /// Reading the thread faulted.
        FAULT = 8 "fault",
        /// Only the crashed thread was requested.
        NOT_WANTED = 9 "not_wanted",
    }
}

open_numbers! {
    /// Method by which a frame was found, from the most to the least trustworthy.
    FoundBy(u8) {
        /// The thread's own registers.
        CONTEXT = 1 "context",
        /// DWARF call frame information.
        CFI = 2 "cfi",
        /// Apple compact unwind.
        COMPACT = 3 "compact",
        /// The code of a prologue or epilogue.
        CODE = 4 "code",
        /// A signal trampoline's saved context.
        SIGNAL_FRAME = 5 "signal_frame",
        /// A rule that the app registered for a range of addresses (a JIT).
        REGISTERED = 6 "registered",
        /// A chain of Swift async contexts.
        ASYNC = 7 "async",
        /// The frame pointer.
        FRAME_POINTER = 8 "frame_pointer",
        /// The link register.
        LINK_REGISTER = 9 "link_register",
        /// The word at the stack pointer, after a jump to nowhere.
        STACK_TOP = 10 "stack_top",
        /// A word on the stack that looks like a return address.
        SCAN = 11 "scan",
        /// A managed runtime's frame (Java, JavaScript): a method and a line, no address.
        ///
        /// Never in a report file: the next launch finds such frames in the runtime's own output.
        MANAGED = 12 "managed",
        /// A row of `.sframe`.
        SFRAME = 13 "sframe",
    }
}

open_numbers! {
    /// Kind of a frame's address. For a return address, look up the name and line of the byte
    /// before it (the call).
    AddressKind(u8) {
        /// The address of an instruction that was about to run or was running.
        ///
        /// Also the first instruction of a signal trampoline, to which a handler returns.
        INSTRUCTION = 0 "instruction",
        /// The address that a call returns to.
        RETURN = 1 "return",
        /// The address at which an asynchronous function resumes.
        ASYNC_RESUME = 2 "async_resume",
    }
}

open_numbers! {
    /// Why a walk up a stack ended.
    WalkEnd(u8) {
        /// The outermost frame.
        ///
        /// Unwind information marks it as having no caller, or the caller's address is zero.
        ROOT = 1 "root",
        /// Memory needed for the next frame can't be read.
        UNREADABLE = 2 "unreadable",
        /// No rule was found for this address.
        NO_RULE = 3 "no_rule",
        /// The next frame would be the same as this one or below it.
        NO_PROGRESS = 4 "no_progress",
        /// The requested number of frames was reached.
        LIMIT = 5 "limit",
        /// The budget of reads or time was exhausted.
        BUDGET = 6 "budget",
        /// The unwind information is malformed.
        MALFORMED = 7 "malformed",
        /// The next address is in no image, and nothing suggests that it is code.
        OUTSIDE_IMAGES = 8 "outside_images",
        /// The walk itself faulted.
        FAULT = 9 "fault",
    }
}

open_numbers! {
    /// Registers beyond the general set, and the processor's fault registers.
    ExtraRegister(u8) {
        /// x86_64 segment base of fs (thread pointer on Linux).
        FS_BASE = 1 "fs_base",
        /// x86_64 segment base of gs (thread pointer on Darwin).
        GS_BASE = 2 "gs_base",
        /// x86_64 exception vector number.
        TRAPNO = 3 "trapno",
        /// x86_64 exception error code.
        ERR = 4 "err",
        /// x86_64 page fault address.
        CR2 = 5 "cr2",
        /// arm64 exception syndrome.
        ESR = 6 "esr",
        /// arm64 fault address.
        FAR = 7 "far",
        /// arm64 exception number, from Darwin's exception state.
        EXCEPTION = 8 "exception",
        /// arm64 thread pointer (`TPIDR_EL0`, `TPIDRRO_EL0` on Darwin).
        THREAD_POINTER = 9 "thread_pointer",
        /// Shadow stack pointer: x86_64 SSP (CET), arm64 `GCSPR_EL0`. The memory there is in the
        /// stack memory.
        SHADOW_STACK = 10 "ssp",
        /// 32-bit x86, in a report of another tool's file.
        EAX = 16 "eax",
        /// 32-bit x86.
        EBX = 17 "ebx",
        /// 32-bit x86.
        ECX = 18 "ecx",
        /// 32-bit x86.
        EDX = 19 "edx",
        /// 32-bit x86.
        ESI = 20 "esi",
        /// 32-bit x86.
        EDI = 21 "edi",
        /// 32-bit x86 frame pointer.
        EBP = 22 "ebp",
        /// 32-bit x86 stack pointer.
        ESP = 23 "esp",
        /// 32-bit x86 instruction pointer.
        EIP = 24 "eip",
        /// 32-bit x86 flags.
        EFLAGS = 25 "eflags",
    }
}

impl ExtraRegister {
    /// The general registers of 32-bit x86.
    pub const X86: [ExtraRegister; 9] =
        [Self::EAX, Self::EBX, Self::ECX, Self::EDX, Self::ESI, Self::EDI, Self::EBP, Self::ESP, Self::EIP];
}

open_numbers! {
    /// Format of a loaded image.
    ImageKind(u8) {
        /// ELF.
        ELF = 1 "elf",
        /// Mach-O.
        MACHO = 2 "macho",
        /// Portable Executable (Windows). Addresses in its file count from its first byte.
        PE = 3 "pe",
    }
}

open_numbers! {
    /// A source of unwind rules in an image.
    UnwindKind(u8) {
        /// `.eh_frame_hdr`.
        EH_FRAME_HDR = 1 "eh_frame_hdr",
        /// `.eh_frame`, `__eh_frame`.
        EH_FRAME = 2 "eh_frame",
        /// `.debug_frame`.
        DEBUG_FRAME = 3 "debug_frame",
        /// `__unwind_info`.
        UNWIND_INFO = 4 "unwind_info",
        /// `.sframe`.
        SFRAME = 5 "sframe",
    }
}

open_numbers! {
    /// The language whose runtime raised an exception.
    Language(u8) {
        /// C++.
        CPP = 1 "cpp",
        /// Objective-C.
        OBJC = 2 "objc",
        /// Rust.
        RUST = 3 "rust",
        /// Swift.
        SWIFT = 4 "swift",
        /// Java, Kotlin and other languages on a Java virtual machine or ART.
        JAVA = 5 "java",
        /// JavaScript.
        JAVASCRIPT = 6 "javascript",
        /// C# and other .NET languages.
        CSHARP = 7 "csharp",
        /// Dart.
        DART = 8 "dart",
        /// Lua.
        LUA = 9 "lua",
        /// Python.
        PYTHON = 10 "python",
        /// Ruby.
        RUBY = 11 "ruby",
        /// PHP.
        PHP = 12 "php",
        /// Go.
        GO = 13 "go",
    }
}

open_numbers! {
    /// A phase of writing a report, for its timing.
    Phase(u8) {
        /// From the fault to the first byte written.
        ENTRY = 1 "entry",
        /// Stopping the other threads and taking their contexts.
        STOP_THREADS = 2 "stop_threads",
        /// The crashed thread.
        CRASHED_THREAD = 3 "crashed_thread",
        /// The images.
        IMAGES = 4 "images",
        /// The other threads.
        OTHER_THREADS = 5 "other_threads",
        /// Stack memory.
        STACK_MEMORY = 6 "stack_memory",
        /// Symbol names.
        SYMBOL_NAMES = 7 "symbol_names",
        /// Resuming the other threads.
        RESUME_THREADS = 8 "resume_threads",
    }
}
