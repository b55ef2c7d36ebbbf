//! The keys of the maps in a report, each declared once for the encoder and the reader.
//!
//! A test compares them with the specification (`docs/report.cddl`). A key is never reused for
//! another purpose.

/// Declares a module of keys for each map, named like the specification's rule, with `_` for `-`.
///
/// The required keys come first, the optional keys after a semicolon.
macro_rules! keys {
    ($($(#[$doc:meta])* $map:ident {
        $($required:ident = $required_key:literal,)*
        $(; $($optional:ident = $optional_key:literal,)*)?
    })*) => {
        $(
            $(#[$doc])*
            #[allow(missing_docs)] // See the specification for each key.
            pub mod $map {
                $(pub const $required: u64 = $required_key;)*
                $($(pub const $optional: u64 = $optional_key;)*)?
                /// Number of required keys.
                pub const REQUIRED: usize = [$($required_key as u64),*].len();
            }
        )*

        /// Every map: its rule's name in the specification, its required and its optional keys.
        #[cfg(feature = "std")]
        pub const MAPS: &[(&str, &[u64], &[u64])] =
            &[$((stringify!($map), &[$($required_key),*], &[$($($optional_key),*)?])),*];
    };
}

keys! {
    /// The header section.
    header {
        FORMAT_VERSION = 0,
        RUN_ID = 1,
        EVENT_ID = 2,
        PID = 3,
        PPID = 4,
        ARCH = 5,
        OS = 6,
        PAGE_SIZE = 7,
        POINTER_AUTH_MASK = 8,
        SDK_VERSION = 9,
        PROCESS_START = 10,
        PROCESS_NAME = 11,
    }
    /// The crash section.
    crash {
        TIME = 0,
        SINCE_INSTALL = 1,
        MONITOR = 2,
        TID = 5,
        FLAGS = 6,
        ;
        SIGNAL = 3,
        MACH = 4,
        ACCESS = 7,
        ADDRESS = 8,
        CONCURRENT_CRASHES = 9,
        MESSAGE = 10,
        EXCEPTION_TYPE = 11,
        LOCATION = 12,
        HANG = 13,
    }
    /// A hang in the crash section.
    hang {
        NUMBER = 0,
        LASTED = 1,
    }
    /// A signal in the crash section.
    signal {
        NUMBER = 0,
        CODE = 1,
        ERRNO = 2,
        ;
        ADDRESS = 3,
        SENDER_PID = 4,
        SENDER_UID = 5,
        TRAP_NUMBER = 6,
        ERROR_CODE = 7,
        SYSCALL = 8,
        SYSCALL_ARCH = 9,
    }
    /// A Mach exception in the crash section.
    mach_exception {
        EXCEPTION = 0,
        CODE = 1,
        SUBCODE = 2,
    }
    /// A concurrent crash in the crash section.
    concurrent_crash {
        TID = 0,
        SIGNAL = 1,
        CODE = 2,
        ;
        ADDRESS = 3,
        AFTER = 4,
    }
    /// An element of a threads section.
    thread {
        TID = 0,
        FLAGS = 2,
        FRAMES = 6,
        WALK_END = 7,
        ;
        NAME = 1,
        STATE = 3,
        NOT_CAPTURED = 4,
        REGISTERS = 5,
        SYSCALL = 8,
        CAPTURED_BY = 9,
        STACK = 10,
        QUEUE = 11,
        CPU_TIME = 12,
        FUTEX = 13,
        PORT = 14,
    }
    /// A futex wait in a thread.
    futex {
        ADDRESS = 0,
        OPERATION = 1,
        EXPECTED = 2,
        TIMED = 3,
        START = 4,
        BYTES = 5,
    }
    /// The registers in a thread.
    registers {
        ARCH = 0,
        GENERAL = 1,
        ;
        EXTRA = 2,
    }
    /// An element of an images section.
    image {
        KIND = 0,
        PATH = 1,
        LOAD_ADDRESS = 2,
        SLIDE = 3,
        SIZE = 4,
        TEXT = 5,
        ;
        BUILD_ID = 6,
        SEGMENTS = 7,
        UNWIND = 8,
        IS_MAIN = 9,
        VERSION = 10,
        CPU = 11,
    }
    /// An element of a stack memory section.
    stack_memory {
        TID = 0,
        ADDRESS = 1,
        BYTES = 2,
    }
    /// An element of a code section.
    code {
        ADDRESS = 0,
        BYTES = 1,
    }
    /// An element of an app memory section.
    app_memory {
        NAME = 0,
        BYTES = 1,
        ;
        ADDRESS = 2,
        SIZE = 3,
    }
    /// An element of a zombies section.
    zombies {
        ADDRESS = 0,
        CLASS = 1,
        ;
        REGISTER = 2,
        SELECTOR = 3,
        CLASS_NOW = 4,
        NAME = 5,
        REASON = 6,
    }
    /// An element of a mappings section.
    mappings {
        START = 0,
        SIZE = 1,
        PROTECTION = 2,
        ;
        NAME = 3,
        FILE_OFFSET = 4,
    }
    /// An element of a replaced images section.
    replaced_images {
        LOAD_ADDRESS = 0,
    }
    /// An element of a symbol names section.
    symbol_names {
        ADDRESS = 0,
        NAME = 1,
        ;
        SYMBOL_ADDRESS = 2,
    }
    /// An element of an exceptions section.
    exception {
        LANGUAGE = 0,
        TID = 3,
        FRAMES = 5,
        ;
        TYPE_NAME = 1,
        MESSAGE = 2,
        LOCATION = 4,
        USER_INFO = 6,
    }
    /// An element of an annotations section.
    annotations {
        SOURCE = 0,
        TEXT = 1,
    }
    /// The fault section.
    fault {
        SECTION = 0,
        ;
        SIGNAL = 1,
        CODE = 2,
        ADDRESS = 3,
        PC = 4,
        TID = 5,
    }
    /// A profile section.
    profile {
        TID = 0,
        SAMPLES = 1,
        SAMPLED = 2,
        NODES = 3,
        ENDS = 4,
        ;
        FAILED = 5,
    }
    /// The end section.
    end {
        COMPLETE = 0,
        ;
        TOTAL = 1,
        PHASES = 2,
        DROPPED = 3,
        THREADS = 4,
        THREADS_CAPTURED = 5,
        DEADLINE = 6,
    }
    /// A breadcrumb in the run state.
    breadcrumb {
        TIME = 0,
        LEVEL = 1,
        ;
        KIND = 2,
        CATEGORY = 3,
        MESSAGE = 4,
        DATA = 5,
    }
}
