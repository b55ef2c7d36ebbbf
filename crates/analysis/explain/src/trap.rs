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
    "inserted by the compiler where execution must not continue: __builtin_trap, Rust's abort, or a failed Swift check",
);
/// `int3`, and arm64's `brk #0xf000`.
pub(crate) const BREAKPOINT: Meaning = Meaning::new(
    "the program stopped itself (__builtin_debugtrap, as V8 and GLib do), or a debugger left a breakpoint behind",
);

/// UBSan's checks by their number in traps (Clang's `LIST_SANITIZER_CHECKS`). New ones are added at
/// the end.
const CHECKS: &[&str] = &[
    "UBSan: addition overflow",
    "UBSan: unreachable code was reached",
    "UBSan: control-flow integrity check failed",
    "UBSan: integer division by zero or overflow",
    "UBSan: object with the wrong dynamic type",
    "UBSan: floating-point conversion overflow",
    "UBSan: call through a function pointer of the wrong type",
    "UBSan: implicit conversion changed a value",
    "UBSan: invalid value passed to a builtin",
    "UBSan: invalid cast of an Objective-C object",
    "UBSan: load of a value that is invalid for its type",
    "UBSan: function ended without returning a value",
    "UBSan: multiplication overflow",
    "UBSan: negation overflow",
    "UBSan: null passed to a _Nonnull parameter",
    "UBSan: null returned from a _Nonnull function",
    "UBSan: null passed to a nonnull parameter",
    "UBSan: null returned from a returns_nonnull function",
    "UBSan: array index out of bounds",
    "UBSan: pointer overflow",
    "UBSan: shift out of bounds",
    "UBSan: subtraction overflow",
    "UBSan: pointer is null, misaligned, or refers to an object that is too small",
    "UBSan: pointer without the assumed alignment",
    "UBSan: variable-length array with a length that is not positive",
    "-fbounds-safety: bounds check failed",
];

/// Returns the meaning of a `-fsanitize-trap` trap.
pub(crate) fn sanitizer_check(number: u8) -> Meaning {
    let what = CHECKS.get(usize::from(number)).copied().unwrap_or("an -fsanitize-trap check failed");
    Meaning { what, is_control_flow: number == 2 }
}

/// Returns the meaning of `brk` with this number.
pub(crate) fn brk_meaning(number: u16) -> Option<Meaning> {
    Some(match number {
        1 => TRAP,
        1000 => Meaning::new("GCC's __builtin_trap"),
        0x5500..=0x55ff => sanitizer_check(number as u8),
        0xc470..=0xc473 => {
            Meaning { what: "pointer authentication failed: the pointer was overwritten", is_control_flow: true }
        }
        0xf003 => Meaning::new("__fastfail"),
        _ => return None,
    })
}
