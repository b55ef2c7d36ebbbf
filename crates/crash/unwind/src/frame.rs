//! Results of a walk: frames, and the reason for its end.

/// The method by which a frame was found: the source of its *caller-side* registers. The numbers
/// are those of `coroner_report::wire::FoundBy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Found {
    /// The registers that the walk started from.
    Context = 1,
    /// DWARF call frame information of the frame below: `.eh_frame` or `.debug_frame`.
    Cfi = 2,
    /// Compact unwind of the frame below: `__unwind_info`.
    CompactUnwind = 3,
    /// The frame record at the frame pointer, without unwind data that confirm it.
    FramePointer = 8,
    /// The arm64 link register, because there was no code at the program counter: a call through a
    /// bad pointer.
    LinkRegister = 9,
    /// The word at the stack pointer, because there was no code at the program counter: a call
    /// through a bad pointer.
    StackTop = 10,
    /// The code of the frame below: the effect on the stack of the instructions up to its return.
    CodeAnalysis = 4,
    /// The context that the kernel saved below a signal trampoline.
    SignalContext = 5,
    /// A Swift async context: this frame is not on the stack, but will run when the one below it
    /// returns.
    SwiftAsync = 7,
    /// A rule that the app registered.
    Registered = 6,
    /// A search of the stack for words that look like return addresses. Less reliable than the
    /// others.
    Scan = 11,
    /// A row of the frame below's `.sframe`.
    SFrame = 13,
}

impl Found {
    /// Returns the variant with that number in a report.
    pub const fn from_number(number: u8) -> Option<Found> {
        Some(match number {
            1 => Found::Context,
            2 => Found::Cfi,
            3 => Found::CompactUnwind,
            4 => Found::CodeAnalysis,
            5 => Found::SignalContext,
            6 => Found::Registered,
            7 => Found::SwiftAsync,
            8 => Found::FramePointer,
            9 => Found::LinkRegister,
            10 => Found::StackTop,
            11 => Found::Scan,
            13 => Found::SFrame,
            _ => return None,
        })
    }

    /// Returns the variant's display name: `context`, `cfi`, `compact`, `frame pointer`, …
    pub const fn name(self) -> &'static str {
        match self {
            Found::Context => "context",
            Found::Cfi => "cfi",
            Found::CompactUnwind => "compact",
            Found::FramePointer => "frame pointer",
            Found::LinkRegister => "link register",
            Found::StackTop => "stack top",
            Found::CodeAnalysis => "code",
            Found::SignalContext => "signal",
            Found::SwiftAsync => "async",
            Found::Registered => "registered",
            Found::Scan => "scan",
            Found::SFrame => "sframe",
        }
    }
}

/// Kind of a frame's `pc`. The numbers are part of the report format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum AddressKind {
    /// The instruction that was running (or about to run), in the first frame and in one that a
    /// signal interrupted.
    InstructionPointer = 1,
    /// The instruction after a call. The call, and with it the function, line and unwind data, is
    /// before it: after a call that never returns this address may belong to the next function.
    ReturnAddress = 2,
    /// An instruction of a signal trampoline, usually its first one, to which the kernel made a
    /// signal handler return: no call precedes it. The frame above it was interrupted. (On Darwin,
    /// whose trampoline calls the handler, the address after that call, which is in the same
    /// function.)
    SignalTrampoline = 3,
}

impl AddressKind {
    /// Returns the kind with that number in a report.
    pub const fn from_number(number: u8) -> Option<AddressKind> {
        match number {
            1 => Some(AddressKind::InstructionPointer),
            2 => Some(AddressKind::ReturnAddress),
            3 => Some(AddressKind::SignalTrampoline),
            _ => None,
        }
    }
}

/// A stack frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The program counter, with authentication codes removed.
    pub pc: u64,
    /// The stack pointer while this frame runs (for a frame further up the stack: after its call
    /// returns). For a frame that is not on the stack ([`Found::SwiftAsync`]), the address of its
    /// context.
    pub sp: u64,
    /// The CFA: the stack pointer of the caller, before its call. `None` if the walk got no
    /// further, and for frames that are not on the stack ([`Found::SwiftAsync`]).
    pub cfa: Option<u64>,
    /// The method by which this frame was found.
    pub found: Found,
    /// Kind of [`Self::pc`].
    pub kind: AddressKind,
}

impl Frame {
    /// Returns the address for looking up functions, lines and unwind data: inside the call for a
    /// return address.
    #[inline]
    pub const fn lookup_address(&self) -> u64 {
        match self.kind {
            AddressKind::InstructionPointer | AddressKind::SignalTrampoline => self.pc,
            AddressKind::ReturnAddress => self.pc.wrapping_sub(1),
        }
    }
}

/// Kind of malformed unwind data. The numbers are part of the report format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Malformed {
    /// An entry extends past the end of its section or of its container.
    Truncated = 1,
    /// An unsupported version.
    Version = 2,
    /// A pointer encoding that does not exist or makes no sense in its place.
    PointerEncoding = 3,
    /// A call frame instruction or expression operation that does not exist.
    Opcode = 4,
    /// An augmentation whose meaning and length are unknown.
    Augmentation = 5,
    /// A number outside its valid range: an offset outside the section, a register that does not
    /// exist.
    OutOfRange = 6,
    /// `DW_CFA_restore_state` without a remembered state, or more remembered states than are kept.
    StateStack = 7,
    /// An expression that pops from an empty stack, overflows it, or does not end.
    Expression = 8,
    /// Unwind data that refer to each other in a cycle, or to the wrong kind of entry.
    Reference = 9,
    /// A rule for a register whose value is unknown.
    UnknownRegister = 10,
    /// A compact encoding that does not exist.
    CompactEncoding = 11,
}

impl core::fmt::Display for Malformed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Malformed::Truncated => "truncated entry",
            Malformed::Version => "unknown version",
            Malformed::PointerEncoding => "invalid pointer encoding",
            Malformed::Opcode => "unknown instruction",
            Malformed::Augmentation => "unknown augmentation",
            Malformed::OutOfRange => "number out of range",
            Malformed::StateStack => "unbalanced or too many remembered states",
            Malformed::Expression => "invalid or endless expression",
            Malformed::Reference => "cyclic reference, or reference to the wrong kind of entry",
            Malformed::UnknownRegister => "rule for a register with unknown value",
            Malformed::CompactEncoding => "unknown compact encoding",
        })
    }
}

/// Reason for the end of a walk. [`End::number`] and [`End::address`] go into reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// The outermost frame: its unwind data state that it has no caller, or the chain of frame
    /// records ends with 0.
    EndOfStack,
    /// The frame budget is exhausted: there are more frames.
    FrameBudget,
    /// The read budget is exhausted.
    ReadBudget,
    /// The caller's stack pointer would not be above this frame's: a loop, or a broken stack.
    NoProgress {
        /// The stack pointer that the caller would have.
        sp: u64,
    },
    /// Required stack memory can't be read.
    Unreadable {
        /// Address of the memory.
        address: u64,
    },
    /// The unwind data are malformed, and no other method found a caller.
    BadUnwindData {
        /// Kind of malformation.
        what: Malformed,
        /// Address of the malformed data in the section.
        address: u64,
    },
    /// No unwind data cover this address, and neither frame pointer nor scan found a caller.
    NoUnwindData {
        /// The address that was looked up.
        address: u64,
    },
    /// The presumed return address does not point to code.
    BadReturnAddress {
        /// The presumed return address.
        address: u64,
    },
}

impl End {
    /// Returns the reason's number in reports, `coroner_report::wire::WalkEnd`.
    pub const fn number(self) -> u8 {
        match self {
            End::EndOfStack => 1,
            End::FrameBudget => 5,
            End::ReadBudget => 6,
            End::NoProgress { .. } => 4,
            End::Unreadable { .. } => 2,
            End::BadUnwindData { .. } => 7,
            End::NoUnwindData { .. } => 3,
            End::BadReturnAddress { .. } => 8,
        }
    }

    /// Returns the address that belongs to the reason, 0 if there is none.
    pub const fn address(self) -> u64 {
        match self {
            End::EndOfStack | End::FrameBudget | End::ReadBudget => 0,
            End::NoProgress { sp } => sp,
            End::Unreadable { address }
            | End::BadUnwindData { address, .. }
            | End::NoUnwindData { address }
            | End::BadReturnAddress { address } => address,
        }
    }
}

impl core::fmt::Display for End {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            End::EndOfStack => f.write_str("end of stack"),
            End::FrameBudget => f.write_str("frame budget exhausted"),
            End::ReadBudget => f.write_str("read budget exhausted"),
            End::NoProgress { sp } => {
                write!(f, "no progress: the caller's stack pointer would be {sp:#x}")
            }
            End::Unreadable { address } => write!(f, "no readable memory at {address:#x}"),
            End::BadUnwindData { what, address } => write!(f, "malformed unwind data at {address:#x}: {what}"),
            End::NoUnwindData { address } => write!(f, "no unwind data for {address:#x}"),
            End::BadReturnAddress { address } => write!(f, "return address {address:#x} does not point to code"),
        }
    }
}

impl core::error::Error for End {}

/// Reason why a rule could not be found or executed. [`crate::Walker::problem`] keeps the first one
/// of a walk, even if a less reliable method then found the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// Memory of the stack or of an unwind section that can't be read.
    Unreadable {
        /// Address of the memory.
        address: u64,
    },
    /// Malformed unwind data.
    Malformed {
        /// Kind of malformation.
        what: Malformed,
        /// Address of the malformed data in the section.
        address: u64,
    },
}

impl core::fmt::Display for Problem {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Problem::Unreadable { address } => write!(f, "no readable memory at {address:#x}"),
            Problem::Malformed { what, address } => write!(f, "malformed unwind data at {address:#x}: {what}"),
        }
    }
}

impl core::error::Error for Problem {}

impl From<coroner_process::memory::Unreadable> for Problem {
    #[inline]
    fn from(unreadable: coroner_process::memory::Unreadable) -> Problem {
        Problem::Unreadable { address: unreadable.address }
    }
}

impl From<Problem> for End {
    fn from(problem: Problem) -> End {
        match problem {
            Problem::Unreadable { address } => End::Unreadable { address },
            Problem::Malformed { what, address } => End::BadUnwindData { what, address },
        }
    }
}
