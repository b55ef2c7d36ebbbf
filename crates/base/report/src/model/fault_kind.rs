//! Kinds of faults and other ends of a process.

use serde::{Deserialize, Serialize};

macro_rules! fault_kinds {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// The kind of fault or end. See `docs/explanations.md` for the evidence of each.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum FaultKind {
            $($(#[$doc])* $name,)*
        }

        impl FaultKind {
            /// The kind in a few words, for people.
            pub fn words(self) -> &'static str {
                match self {
                    $(FaultKind::$name => $text,)*
                }
            }

            /// The name in JSON, such as `null_pointer`.
            pub fn name(self) -> String {
                let mut name = String::new();
                for letter in format!("{self:?}").chars() {
                    if letter.is_ascii_uppercase() && !name.is_empty() {
                        name.push('_');
                    }
                    name.push(letter.to_ascii_lowercase());
                }
                name
            }

            /// Whether the processor or the kernel stopped a thread for what it did.
            ///
            /// False if the program itself or another process requested the end.
            pub fn is_fault(self) -> bool {
                use FaultKind as K;
                !matches!(
                    self,
                    K::Abort | K::Panic | K::Exception | K::SystemCall | K::SentSignal | K::Hang | K::Requested | K::Unknown
                )
            }
        }
    };
}

fault_kinds! {
    /// A null pointer was used, or a field or element was accessed through one.
    NullPointer = "null pointer",
    /// An address in the first 64 KiB or the last 4 KiB, from a register that was not 0.
    NearNull = "address near null",
    /// A non-canonical address: its upper bits are not a sign extension of the others.
    NonCanonical = "non-canonical address",
    /// A register holds a fill pattern of allocators or compilers.
    ///
    /// They write such patterns to memory that has no value yet, or no longer has one.
    PoisonedPointer = "fill pattern used as a pointer",
    /// An address at which nothing is mapped and about which nothing else is known.
    Unmapped = "unmapped address",
    /// The memory is mapped but doesn't allow the access.
    AccessDenied = "access denied",
    /// Mapped memory that allows no access.
    ///
    /// Such memory is a guard page below a stack or beside an allocation, or reserved addresses.
    GuardPage = "guard page or reserved memory",
    /// A write to a read-only image segment or another read-only mapping.
    WriteToReadOnly = "write to read-only memory",
    /// A jump to mapped memory that is not executable.
    ExecuteOfData = "jump to non-executable memory",
    /// A jump or call to the null address, or near it.
    JumpToNull = "call through a null pointer",
    /// A jump or call to an address at which nothing is mapped.
    JumpToNowhere = "jump to an unmapped address",
    /// A function returned to an address without code.
    ///
    /// Its return address was overwritten, or its stack pointer was wrong.
    BadReturn = "return to an invalid address",
    /// The stack had no room left.
    StackOverflow = "stack overflow",
    /// A mapped file is shorter than its mapping, or its bytes can't be read.
    TruncatedMapping = "unreadable page of a mapped file",
    /// Memory whose content was lost in a hardware failure.
    MemoryFailure = "memory hardware failure",
    /// An address that is not aligned as the instruction requires.
    Unaligned = "unaligned address",
    /// An integer was divided by zero.
    DivisionByZero = "integer division by zero",
    /// A quotient that doesn't fit in its register.
    DivisionOverflow = "integer division overflow",
    /// Division by zero or division overflow: the divisor is not in the report.
    DivisionError = "integer division by zero or overflow",
    /// A floating-point operation whose exception is enabled.
    FloatingPoint = "floating-point exception",
    /// A trap instruction that compilers place where a program must not continue.
    Trap = "trap instruction",
    /// A breakpoint instruction, without a debugger.
    Breakpoint = "breakpoint instruction",
    /// Bytes that are not an instruction, or not one of this processor.
    IllegalInstruction = "illegal instruction",
    /// An instruction that only the kernel may use.
    PrivilegedInstruction = "privileged instruction",
    /// A failed control-flow check: pointer authentication, shadow stack or landing pad.
    ControlFlow = "failed control-flow check",
    /// A pointer's tag didn't match its memory's tag (arm64 MTE).
    TagMismatch = "memory tag mismatch",
    /// The allocator found its own data overwritten.
    HeapCorruption = "heap corruption",
    /// The program ended itself: `abort`, a failed assertion or a check of the C library.
    Abort = "abort",
    /// A Rust panic.
    Panic = "panic",
    /// An uncaught exception.
    Exception = "uncaught exception",
    /// A system call that a filter rejected.
    SystemCall = "blocked system call",
    /// A process, maybe this one, sent the signal.
    SentSignal = "signal sent by software",
    /// A thread did not respond.
    Hang = "hang",
    /// The app requested the report.
    Requested = "report requested by the app",
    /// The report doesn't contain enough to determine the kind.
    #[default]
    #[serde(other)]
    Unknown = "unknown",
}
