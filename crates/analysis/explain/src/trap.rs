//! The meanings of instructions that terminate a program on purpose.
//!
//! - `ud2`, arm64 `brk #1`: `__builtin_trap` in Clang (GCC: `ud2`, `brk #1000`), Rust's `abort`
//!   intrinsic, a failed check in Swift. Sources: LLVM's `ISD::TRAP`; GCC's `aarch64.md`.
//! - `ud1 eax, [eax+KIND]`, `brk #0x5500+KIND`: `-fsanitize-trap`, UBSan's check KIND. Sources:
//!   LLVM's `ISD::UBSANTRAP`; Clang's `SanitizerHandler.h`.
//! - `int3`, `brk #0xf000`: `__builtin_debugtrap`, a breakpoint. Source: LLVM's `ISD::DEBUGTRAP`.
//! - `brk #0xc470` … `#0xc473`: a pointer that failed authentication with key IA, IB, DA, DB.
//!   Source: LLVM's `AArch64AsmPrinter`, "ptrauth traps".
//! - `brk #0xf003`: `__fastfail`. Source: Microsoft's "ARM64 ABI conventions".
//! - `udf #0`: zero bytes, not code. Source: Arm's reference manual, UDF.

/// The meaning of a trap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Meaning {
    /// Text for the headline.
    pub(crate) what: &'static str,
    /// Whether the trap is a failed control-flow check.
    pub(crate) is_control_flow: bool,
}

impl Meaning {
    pub(crate) const fn new(what: &'static str) -> Self {
        Meaning { what, is_control_flow: false }
    }
}

/// `ud2`, and arm64's `brk #1`.
pub(crate) const TRAP: Meaning = Meaning::new(
    "the compiler put it where the program must not go on: __builtin_trap, Rust's abort, a failed check of Swift",
);
/// `int3`, and arm64's `brk #0xf000`.
pub(crate) const BREAKPOINT: Meaning = Meaning::new(
    "an abort of the program's own (__builtin_debugtrap, V8's and GLib's), or a breakpoint that is left of a debugger",
);

/// UBSan's checks by their number in traps (Clang's `LIST_SANITIZER_CHECKS`). New ones are added at
/// the end.
const CHECKS: &[&str] = &[
    "UBSan: an addition overflowed",
    "UBSan: code was reached that is marked as unreachable",
    "UBSan: a check of control-flow integrity failed",
    "UBSan: an integer was divided by zero, or its division overflowed",
    "UBSan: an object was not of its dynamic type",
    "UBSan: a conversion of a floating-point number overflowed",
    "UBSan: a function was called by a pointer of another type",
    "UBSan: an implicit conversion changed a value",
    "UBSan: an invalid value was passed to a builtin",
    "UBSan: an Objective-C object was cast to a type that it is not of",
    "UBSan: a value was loaded that its type can't have",
    "UBSan: a function ended without a return",
    "UBSan: a multiplication overflowed",
    "UBSan: a negation overflowed",
    "UBSan: null was passed where _Nonnull is said",
    "UBSan: null was returned where _Nonnull is said",
    "UBSan: null was passed where it is not allowed",
    "UBSan: null was returned where it is not allowed",
    "UBSan: an index was out of the array's bounds",
    "UBSan: a pointer overflowed",
    "UBSan: a shift was by more bits than its type has",
    "UBSan: a subtraction overflowed",
    "UBSan: a pointer was null, not aligned, or to an object that is too small",
    "UBSan: an alignment was assumed that a pointer did not have",
    "UBSan: an array's length was not positive",
    "-fbounds-safety: a bound was exceeded",
];

/// Returns the meaning of a `-fsanitize-trap` trap.
pub(crate) fn of_sanitizer(number: u8) -> Meaning {
    let what = CHECKS.get(usize::from(number)).copied().unwrap_or("a check of -fsanitize-trap failed");
    Meaning { what, is_control_flow: number == 2 }
}

/// Returns the meaning of `brk` with this number.
pub(crate) fn of_brk(number: u16) -> Option<Meaning> {
    Some(match number {
        1 => TRAP,
        1000 => Meaning::new("__builtin_trap of GCC"),
        0x5500..=0x55ff => of_sanitizer(number as u8),
        0xc470..=0xc473 => {
            Meaning { what: "a pointer failed its authentication: it was overwritten", is_control_flow: true }
        }
        0xf003 => Meaning::new("__fastfail"),
        _ => return None,
    })
}
