//! The programs, and what is to be said of each.

use coroner_report::model::FaultKind as Kind;
use coroner_report::wire::Access;

/// A language that programs are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Language {
    /// `faults.c`
    C,
    /// `faults.hpp`, which `faults.c` includes as C++
    Cpp,
    /// `program.rs`
    Rust,
}

/// What is to be said of a fault.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) language: Language,
    pub(super) kind: Kind,
    /// The kind without optimisation, where that is another.
    pub(super) kind_unoptimised: Kind,
    pub(super) access: Option<(Access, u32)>,
    /// The value of the register that is to be named, and what the instruction adds.
    pub(super) register: Option<(u64, i64)>,
    /// The same without optimisation, where the address of a field is computed before it is used.
    pub(super) register_unoptimised: Option<(u64, i64)>,
    /// Whether an address that differs by one bit is to be named.
    pub(super) is_flip: bool,
    /// Whether it is assembly of x86_64.
    pub(super) is_x86: bool,
}

const fn row(name: &'static str, kind: Kind) -> Row {
    Row {
        name,
        language: Language::C,
        kind,
        kind_unoptimised: kind,
        access: None,
        register: None,
        register_unoptimised: None,
        is_flip: false,
        is_x86: false,
    }
}

const fn reads(name: &'static str, kind: Kind, value: u64, offset: i64, width: u32) -> Row {
    Row { access: Some((Access::READ, width)), register: Some((value, offset)), ..row(name, kind) }
}

const fn writes(name: &'static str, kind: Kind, value: u64, offset: i64, width: u32) -> Row {
    Row { access: Some((Access::WRITE, width)), register: Some((value, offset)), ..row(name, kind) }
}

const fn accesses(name: &'static str, kind: Kind, access: Access, width: u32) -> Row {
    Row { access: Some((access, width)), ..row(name, kind) }
}

const fn unoptimised(row: Row, kind: Kind) -> Row {
    Row { kind_unoptimised: kind, ..row }
}

/// What is said without optimisation of a field whose address was computed before.
const fn computed(row: Row, kind: Kind, address: u64) -> Row {
    Row { kind_unoptimised: kind, register_unoptimised: Some((address, 0)), ..row }
}

const fn flips(name: &'static str, kind: Kind) -> Row {
    Row { is_flip: true, ..row(name, kind) }
}

const fn x86(row: Row) -> Row {
    Row { is_x86: true, ..row }
}

const fn cpp(row: Row) -> Row {
    Row { language: Language::Cpp, ..row }
}

const fn rust(row: Row) -> Row {
    Row { language: Language::Rust, ..row }
}

const ODD: u64 = 0x00de_ad00_beef_0000;

/// Every program. Each is built with and without optimisation.
pub(super) const ROWS: &[Row] = &[
    reads("null_int", Kind::NullPointer, 0, 16, 4),
    writes("null_int_write", Kind::NullPointer, 0, 16, 4),
    reads("null_char", Kind::NullPointer, 0, 0, 1),
    writes("null_char_write", Kind::NullPointer, 0, 0, 1),
    reads("null_flag", Kind::NullPointer, 0, 20, 1),
    reads("null_short", Kind::NullPointer, 0, 22, 2),
    writes("null_short_write", Kind::NullPointer, 0, 22, 2),
    reads("null_long", Kind::NullPointer, 0, 24, 8),
    writes("null_long_write", Kind::NullPointer, 0, 24, 8),
    reads("null_double", Kind::NullPointer, 0, 32, 8),
    writes("null_double_write", Kind::NullPointer, 0, 32, 8),
    reads("null_far", Kind::NullPointer, 0, 0x3028, 4),
    reads("near_null", Kind::NearNull, 0x30, 16, 4),
    writes("near_null_write", Kind::NearNull, 0x48, 24, 8),
    reads("map_failed", Kind::NearNull, u64::MAX, 16, 4),
    reads("error_pointer", Kind::NearNull, -12_i64 as u64, 24, 8),
    reads("non_canonical", Kind::NonCanonical, ODD, 16, 4),
    writes("non_canonical_write", Kind::NonCanonical, ODD, 24, 8),
    reads("jemalloc_freed", Kind::PoisonedPointer, 0x5a5a_5a5a_5a5a_5a5a, 16, 4),
    writes("jemalloc_new", Kind::PoisonedPointer, 0xa5a5_a5a5_a5a5_a5a5, 16, 4),
    reads("mimalloc_freed", Kind::PoisonedPointer, 0xdfdf_dfdf_dfdf_dfdf, 24, 8),
    reads("crt_freed", Kind::PoisonedPointer, 0xdddd_dddd_dddd_dddd, 16, 4),
    reads("crt_new", Kind::PoisonedPointer, 0xcdcd_cdcd_cdcd_cdcd, 16, 4),
    reads("asan_new", Kind::PoisonedPointer, 0xbebe_bebe_bebe_bebe, 24, 8),
    reads("scribbled", Kind::PoisonedPointer, 0x5555_5555_5555_5555, 16, 4),
    reads("pattern_init", Kind::PoisonedPointer, 0xfefe_fefe_fefe_fefe, 16, 4),
    reads("go_freed", Kind::PoisonedPointer, 0xdead_beef_dead_beef, 16, 4),
    reads("unmapped", Kind::Unmapped, 0x1234_0000_0000, 16, 4),
    writes("unmapped_write", Kind::Unmapped, 0x1234_0000_0000, 24, 8),
    accesses("constant_write", Kind::WriteToReadOnly, Access::WRITE, 4),
    accesses("code_write", Kind::WriteToReadOnly, Access::WRITE, 4),
    accesses("protected_write", Kind::WriteToReadOnly, Access::WRITE, 4),
    accesses("guard_read", Kind::GuardPage, Access::READ, 4),
    accesses("guard_write", Kind::GuardPage, Access::WRITE, 8),
    accesses("truncated", Kind::TruncatedMapping, Access::READ, 1),
    row("call_null", Kind::JumpToNull),
    row("call_nowhere", Kind::JumpToNowhere),
    row("call_static", Kind::ExecuteOfData),
    row("call_heap", Kind::ExecuteOfData),
    row("call_stack", Kind::ExecuteOfData),
    row("call_non_canonical", Kind::NonCanonical),
    row("call_freed", Kind::PoisonedPointer),
    // Without optimisation the divisor is in the red zone.
    row("divide", Kind::DivisionByZero),
    row("divide_unsigned", Kind::DivisionByZero),
    row("divide_remainder", Kind::DivisionByZero),
    row("divide_overflow", Kind::DivisionOverflow),
    row("trap", Kind::Trap),
    row("ubsan", Kind::Trap),
    row("breakpoint", Kind::Breakpoint),
    x86(row("privileged", Kind::PrivilegedInstruction)),
    x86(row("bad_opcode", Kind::IllegalInstruction)),
    x86(row("unaligned", Kind::Unaligned)),
    row("aborts", Kind::Abort),
    row("asserts", Kind::Abort),
    row("raises", Kind::SentSignal),
    row("frees_twice", Kind::Abort),
    row("smashes", Kind::Abort),
    row("overflow", Kind::StackOverflow),
    row("overflow_of_two", Kind::StackOverflow),
    row("copy_to_null", Kind::NullPointer),
    row("length_of_null", Kind::NullPointer),
    flips("flipped_static_33", Kind::Unmapped),
    flips("flipped_static_41", Kind::Unmapped),
    flips("flipped_static_52", Kind::NonCanonical),
    flips("flipped_constant_38", Kind::Unmapped),
    flips("flipped_code_30", Kind::Unmapped),
    flips("flipped_stack_36", Kind::Unmapped),
    flips("flipped_stack_43", Kind::Unmapped),
    flips("flipped_stack_50", Kind::NonCanonical),
    cpp(reads("virtual_of_null", Kind::NullPointer, 0, 0, 8)),
    cpp(reads("virtual_of_freed", Kind::PoisonedPointer, 0x5a5a_5a5a_5a5a_5a5a, 0, 8)),
    unoptimised(cpp(row("virtual_without_table", Kind::NullPointer)), Kind::NearNull),
    cpp(row("virtual_of_bad_table", Kind::PoisonedPointer)),
    cpp(reads("member_of_null", Kind::NullPointer, 0, 8, 8)),
    cpp(row("throws", Kind::Exception)),
    cpp(row("string_of_null", Kind::Exception)),
    cpp(row("out_of_range", Kind::Exception)),
    cpp(row("empty_function", Kind::Exception)),
    cpp(row("terminates", Kind::Exception)),
    cpp(row("element_of_null", Kind::NullPointer)),
    cpp(row("string_written", Kind::NearNull)),
    computed(rust(reads("null_read", Kind::NullPointer, 0, 16, 4)), Kind::NearNull, 16),
    rust(writes("null_write", Kind::NullPointer, 0, 24, 8)),
    computed(rust(reads("near_null", Kind::NearNull, 0x30, 16, 4)), Kind::NearNull, 0x40),
    computed(rust(reads("non_canonical", Kind::NonCanonical, ODD, 16, 4)), Kind::NonCanonical, ODD + 16),
    // Without optimisation the standard library panics at pointers that are not aligned.
    unoptimised(rust(reads("uninitialised", Kind::PoisonedPointer, 0x0101_0101_0101_0101, 16, 4)), Kind::Abort),
    unoptimised(rust(reads("freed", Kind::PoisonedPointer, 0xdfdf_dfdf_dfdf_dfdf, 24, 8)), Kind::Abort),
    computed(rust(reads("unmapped", Kind::Unmapped, 0x1234_0000_0000, 24, 8)), Kind::Unmapped, 0x1234_0000_0018),
    rust(accesses("constant_write", Kind::WriteToReadOnly, Access::WRITE, 4)),
    rust(row("call_null", Kind::JumpToNull)),
    rust(row("call_nowhere", Kind::JumpToNowhere)),
    rust(row("panics", Kind::Abort)),
    rust(row("aborts", Kind::Abort)),
    rust(row("overflow", Kind::StackOverflow)),
];
