//! Kinds of ends.

use serde::{Deserialize, Serialize};

macro_rules! fault_kinds {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// What kind of end it was. What each rests on is in `docs/explanations.md`.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum FaultKind {
            $($(#[$doc])* $name,)*
        }

        impl FaultKind {
            /// For people, in a few words.
            pub fn words(self) -> &'static str {
                match self {
                    $(FaultKind::$name => $text,)*
                }
            }

            /// As in JSON: `null_pointer`.
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

            /// Whether the processor or the kernel stopped a thread for what it did: neither the program nor another process asked for the end.
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
    /// A null pointer was used, or a field or an element by one.
    NullPointer = "null pointer",
    /// An address within the first 64 KiB or the last 4 KiB, by a register that was not 0.
    NearNull = "address near null",
    /// An address that the processor can't have: its upper bits are no sign extension of the others.
    NonCanonical = "non-canonical address",
    /// A register holds what allocators and compilers fill memory with that has no value (any more).
    PoisonedPointer = "fill pattern used as a pointer",
    /// An address at which nothing is mapped, and of which no more is known.
    Unmapped = "address where nothing is mapped",
    /// Memory that is mapped does not allow the access.
    AccessDenied = "access that the memory does not allow",
    /// Memory that is mapped and that nobody may access: a guard page below a stack or beside an allocation, or addresses that were reserved.
    GuardPage = "guard page or reserved memory",
    /// A write to a segment of an image, or another mapping, that may only be read.
    WriteToReadOnly = "write to read-only memory",
    /// A jump to memory that is mapped and may not be executed.
    ExecuteOfData = "jump to memory that is no code",
    /// A jump or call to the null address, or near it.
    JumpToNull = "call of a null pointer",
    /// A jump or call to an address at which nothing is mapped.
    JumpToNowhere = "jump to an address where nothing is mapped",
    /// A function returned to where no code is: its return address was overwritten, or its stack pointer was wrong.
    BadReturn = "return to an address that is no code",
    /// The stack had no room left.
    StackOverflow = "stack overflow",
    /// A mapped file has no bytes there, being shorter than its mapping, or they can't be read.
    TruncatedMapping = "mapped file without bytes there",
    /// Memory whose content is lost by a failure of the hardware.
    MemoryFailure = "memory that failed",
    /// An address that is not aligned as the instruction needs it.
    Unaligned = "unaligned address",
    /// An integer was divided by zero.
    DivisionByZero = "integer division by zero",
    /// A quotient that has no room in its register.
    DivisionOverflow = "integer division overflow",
    /// One of these two: the divisor is not in the report.
    DivisionError = "integer division by zero, or its overflow",
    /// A floating-point operation whose exception is enabled.
    FloatingPoint = "floating-point exception",
    /// An instruction that compilers put where a program must not go on.
    Trap = "trap instruction",
    /// A breakpoint instruction, without a debugger.
    Breakpoint = "breakpoint instruction",
    /// Bytes that are no instruction, or none of this processor.
    IllegalInstruction = "illegal instruction",
    /// An instruction that only the kernel may use.
    PrivilegedInstruction = "privileged instruction",
    /// A pointer's authentication, a shadow stack or a landing pad said that control flow was tampered with.
    ControlFlow = "control-flow check that failed",
    /// arm64 MTE: a pointer's tag was not its memory's.
    TagMismatch = "memory tag mismatch",
    /// The allocator found its own data overwritten.
    HeapCorruption = "heap corruption",
    /// The program ended itself: `abort`, a failed assertion, a check of the C library.
    Abort = "abort",
    /// A panic of Rust.
    Panic = "panic",
    /// An exception that nobody caught.
    Exception = "uncaught exception",
    /// A system call that a filter refused.
    SystemCall = "system call that is not allowed",
    /// A process, maybe this one, sent the signal.
    SentSignal = "signal that was sent",
    /// A thread did not answer.
    Hang = "hang",
    /// The app asked for the report.
    Requested = "report that the app asked for",
    /// What the report says is not enough to tell.
    #[default]
    #[serde(other)]
    Unknown = "unknown",
}
