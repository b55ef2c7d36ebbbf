//! The programs, and the expected explanation of each.

use coroner_report::model::FaultKind as Kind;
use coroner_report::wire::Access;

/// A programming language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Language {
    /// `faults.c`
    C,
    /// `faults.hpp`, which `faults.c` includes as C++
    Cpp,
    /// `program.rs`
    Rust,
}

/// The expected explanation of a fault.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) language: Language,
    pub(super) kind: Kind,
    /// The kind without optimization, if it differs.
    pub(super) kind_unoptimised: Kind,
    pub(super) access: Option<(Access, u32)>,
    /// The value of the register to be named, and the offset that the instruction adds.
    pub(super) register: Option<(u64, i64)>,
    /// The same without optimization, if a field's address is computed before it is used.
    pub(super) register_unoptimised: Option<(u64, i64)>,
    /// Whether an address that differs by one bit must be named.
    pub(super) is_flip: bool,
    /// Whether it is x86_64 assembly.
    pub(super) is_x86: bool,
    /// Whether it is only for arm64.
    pub(super) is_arm64: bool,
    /// Words in the sentence.
    pub(super) says: &'static str,
    /// The variable that held the bad value, and its accessed part, if known.
    ///
    /// `None` if there is no such variable, or it is the one that hides values from the compiler.
    pub(super) variable: Option<(&'static str, Option<&'static str>)>,
    /// A variable that may be named, in inlined library functions.
    pub(super) may_name: Option<&'static str>,
    /// Whether no register may be named.
    pub(super) is_nameless: bool,
    /// Whether nothing may be called certain.
    pub(super) is_doubtful: bool,
    /// Environment variables: the allocator, and its fill pattern.
    pub(super) environment: &'static [(&'static str, &'static str)],
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
        is_arm64: false,
        says: "",
        variable: None,
        may_name: None,
        is_nameless: false,
        is_doubtful: false,
        environment: &[],
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

/// A row whose unoptimized program computes the field's address before the access.
const fn computed(row: Row, kind: Kind, address: u64) -> Row {
    Row { kind_unoptimised: kind, register_unoptimised: Some((address, 0)), ..row }
}

const fn flips(name: &'static str, kind: Kind) -> Row {
    Row { is_flip: true, ..row(name, kind) }
}

const fn x86(row: Row) -> Row {
    Row { is_x86: true, ..row }
}

const fn arm64(row: Row) -> Row {
    Row { is_arm64: true, ..row }
}

const fn says(row: Row, says: &'static str) -> Row {
    Row { says, ..row }
}

/// A row that names the variable or field with the bad value, and the accessed expression.
const fn named(row: Row, variable: &'static str, accessed: &'static str) -> Row {
    Row { variable: Some((variable, Some(accessed))), ..row }
}

/// A row that names a variable whose value was called, divided by, or used directly.
const fn named_alone(row: Row, variable: &'static str) -> Row {
    Row { variable: Some((variable, None)), ..row }
}

const fn with(row: Row, environment: &'static [(&'static str, &'static str)]) -> Row {
    Row { environment, ..row }
}

const JEMALLOC: &[(&str, &str)] = &[("LD_PRELOAD", "libjemalloc.so.2"), ("MALLOC_CONF", "junk:true")];
const MIMALLOC: &[(&str, &str)] = &[("LD_PRELOAD", "libmimalloc.so.2")];
const PERTURB: &[(&str, &str)] = &[("MALLOC_PERTURB_", "240")];
const ASAN: &[(&str, &str)] =
    &[("LD_PRELOAD", "libasan.so.8"), ("ASAN_OPTIONS", "handle_segv=0:handle_sigbus=0:handle_abort=0:detect_leaks=0")];

const fn may_name(row: Row, variable: &'static str) -> Row {
    Row { may_name: Some(variable), ..row }
}

const fn nameless(row: Row) -> Row {
    Row { is_nameless: true, ..row }
}

const fn doubtful(row: Row) -> Row {
    Row { is_doubtful: true, ..row }
}

const fn cpp(row: Row) -> Row {
    Row { language: Language::Cpp, ..row }
}

const fn rust(row: Row) -> Row {
    Row { language: Language::Rust, ..row }
}

const ODD: u64 = 0x00de_ad00_beef_0000;

/// All programs. Each is built with and without optimization.
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
    may_name(accesses("constant_write", Kind::WriteToReadOnly, Access::WRITE, 4), "value"),
    may_name(accesses("code_write", Kind::WriteToReadOnly, Access::WRITE, 4), "value"),
    accesses("protected_write", Kind::WriteToReadOnly, Access::WRITE, 4),
    accesses("guard_read", Kind::GuardPage, Access::READ, 4),
    accesses("guard_within", Kind::GuardPage, Access::READ, 4),
    accesses("guard_write", Kind::GuardPage, Access::WRITE, 8),
    accesses("truncated", Kind::TruncatedMapping, Access::READ, 1),
    may_name(row("call_null", Kind::JumpToNull), "function"),
    may_name(row("call_nowhere", Kind::JumpToNowhere), "function"),
    may_name(row("call_static", Kind::ExecuteOfData), "function"),
    may_name(row("call_heap", Kind::ExecuteOfData), "function"),
    may_name(row("call_stack", Kind::ExecuteOfData), "function"),
    named_alone(row("call_non_canonical", Kind::NonCanonical), "function"),
    named_alone(row("call_freed", Kind::PoisonedPointer), "function"),
    named_alone(row("divide", Kind::DivisionByZero), "b"),
    named_alone(row("divide_unsigned", Kind::DivisionByZero), "b"),
    named_alone(row("divide_remainder", Kind::DivisionByZero), "b"),
    named_alone(row("divide_overflow", Kind::DivisionOverflow), "b"),
    row("trap", Kind::Trap),
    row("ubsan", Kind::Trap),
    row("breakpoint", Kind::Breakpoint),
    x86(row("privileged", Kind::PrivilegedInstruction)),
    x86(row("bad_opcode", Kind::IllegalInstruction)),
    x86(row("unaligned", Kind::Unaligned)),
    x86(accesses("alignment_checked", Kind::Unaligned, Access::READ, 4)),
    accesses("of_zero", Kind::NullPointer, Access::READ, 4),
    x86(doubtful(nameless(row("by_fs", Kind::Unmapped)))),
    x86(doubtful(row("zeros_run", Kind::NullPointer))),
    x86(row("trap_made", Kind::Trap)),
    row("aborts", Kind::Abort),
    row("asserts", Kind::Abort),
    row("raises", Kind::SentSignal),
    row("frees_twice", Kind::Abort),
    row("smashes", Kind::Abort),
    row("overflow", Kind::StackOverflow),
    row("overflow_of_two", Kind::StackOverflow),
    row("overflow_into_guard", Kind::StackOverflow),
    says(row("large_frame", Kind::StackOverflow), "exceeds the remaining stack"),
    x86(says(row("smashed_return", Kind::BadReturn), "eturn to an invalid address")),
    x86(says(row("smashed_return_to_nowhere", Kind::BadReturn), "eturn to an invalid address")),
    x86(nameless(row("two_added", Kind::Unmapped))),
    x86(nameless(row("two_added_near_null", Kind::NearNull))),
    named(reads("of_parameter", Kind::NullPointer, 0, 16, 4), "row", "row->number"),
    named(writes("of_local", Kind::NullPointer, 0, 24, 8), "local", "local->total"),
    named(reads("of_field", Kind::NullPointer, 0, 16, 4), "picture->row", "picture->row->number"),
    named(writes("of_pixels", Kind::NullPointer, 0, 0, 1), "picture->pixels", "*picture->pixels"),
    named(reads("of_next", Kind::NullPointer, 0, 0, 4), "picture->next->next", "picture->next->next->width"),
    named(reads("of_element", Kind::NullPointer, 0, 16, 4), "picture->rows[2]", "picture->rows[2]->number"),
    named(reads("of_global", Kind::NullPointer, 0, 16, 4), "current->row", "current->row->number"),
    named(reads("of_static", Kind::NullPointer, 0, 4, 4), "nobody", "nobody->height"),
    named(reads("of_structure", Kind::NullPointer, 0, 16, 4), "local.row", "local.row->number"),
    named(
        reads("of_freed", Kind::PoisonedPointer, 0x5a5a_5a5a_5a5a_5a5a, 16, 4),
        "picture->row",
        "picture->row->number",
    ),
    // The allocators of the system, of Debian's packages and of the sanitizer.
    named(
        with(reads("used_when_freed", Kind::PoisonedPointer, 0x5a5a_5a5a_5a5a_5a5a, 16, 4), JEMALLOC),
        "picture->row",
        "picture->row->number",
    ),
    named(
        with(reads("never_written", Kind::PoisonedPointer, 0xa5a5_a5a5_a5a5_a5a5, 16, 4), JEMALLOC),
        "picture->row",
        "picture->row->number",
    ),
    named(
        with(reads("used_when_freed", Kind::PoisonedPointer, 0xf0f0_f0f0_f0f0_f0f0, 16, 4), PERTURB),
        "picture->row",
        "picture->row->number",
    ),
    named(
        with(reads("never_written", Kind::PoisonedPointer, 0x0f0f_0f0f_0f0f_0f0f, 16, 4), PERTURB),
        "picture->row",
        "picture->row->number",
    ),
    named(
        with(reads("never_written", Kind::PoisonedPointer, 0xbebe_bebe_bebe_bebe, 16, 4), ASAN),
        "picture->row",
        "picture->row->number",
    ),
    named(with(reads("first_when_freed", Kind::NullPointer, 0, 8, 4), MIMALLOC), "list->next", "list->next->number"),
    says(row("corrupts_top", Kind::Abort), "corrupted top size"),
    says(row("frees_the_middle", Kind::Abort), "free(): invalid pointer"),
    says(row("frees_cached_twice", Kind::Abort), "double free detected in tcache"),
    says(row("corrupts_a_size", Kind::Abort), "corruption (out)"),
    may_name(row("corrupts_a_list", Kind::NonCanonical), "bck"),
    with(reads("frees_what_is_not", Kind::NearNull, 8, 0, 8), JEMALLOC),
    with(reads("frees_what_is_not", Kind::Unmapped, 0x1234_0000_0000, 0x100, 8), MIMALLOC),
    named_alone(row("of_handler", Kind::JumpToNull), "picture->handler"),
    named(reads("of_dimensions", Kind::NullPointer, 0, 16, 4), "grid[2][1]", "grid[2][1]->number"),
    named(reads("behind_array", Kind::NullPointer, 0, 16, 4), "lone", "lone->number"),
    may_name(row("jumped_on", Kind::JumpToNowhere), "of->call"),
    row("goes_to", Kind::JumpToNowhere),
    row("stack_unmapped", Kind::Unmapped),
    row("below_the_stack", Kind::GuardPage),
    named_alone(reads("of_cast", Kind::NullPointer, 0, 24, 8), "small"),
    named_alone(row("of_count", Kind::DivisionByZero), "count"),
    arm64(row("overflow_at_the_end", Kind::StackOverflow)),
    arm64(row("overflow_of_unused", Kind::StackOverflow)),
    says(row("overflow_over_the_guard", Kind::StackOverflow), "excessive recursion in "),
    says(row("overflow_past_the_guard", Kind::StackOverflow), "exceeds the remaining stack"),
    // (The arm64 emulator takes the fatal signal for an internal fault.)
    x86(says(row("signal_without_room", Kind::StackOverflow), "called by full")),
    row("overflow_of_check", Kind::StackOverflow),
    row("overflow_of_probe", Kind::StackOverflow),
    arm64(row("overflow_of_stack_check", Kind::StackOverflow)),
    arm64(row("tagged_null", Kind::NearNull)),
    arm64(row("rust_abort", Kind::Trap)),
    arm64(row("authentication_trap", Kind::ControlFlow)),
    arm64(row("cfi_trap", Kind::ControlFlow)),
    arm64(row("fail_fast", Kind::Trap)),
    arm64(row("unaligned_exclusive", Kind::Unaligned)),
    arm64(row("undefined", Kind::Trap)),
    arm64(may_name(row("bad_authentication", Kind::NonCanonical), "function")),
    arm64(row("no_landing_pad", Kind::IllegalInstruction)),
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
    says(cpp(row("throws", Kind::Exception)), "thrown by throws"),
    says(cpp(row("pure_virtual", Kind::Exception)), "pure virtual"),
    cpp(row("string_of_null", Kind::Exception)),
    cpp(row("out_of_range", Kind::Exception)),
    cpp(row("empty_function", Kind::Exception)),
    cpp(row("terminates", Kind::Exception)),
    may_name(cpp(row("element_of_null", Kind::NullPointer)), "this"),
    may_name(cpp(row("string_written", Kind::NearNull)), "this"),
    named(cpp(reads("this_is_null", Kind::NullPointer, 0, 8, 8)), "this", "this->width"),
    named(cpp(reads("of_reference", Kind::NullPointer, 0, 8, 8)), "there", "there.width"),
    // Without optimization the standard library checks the pointers.
    named(unoptimised(rust(reads("of_parameter", Kind::NullPointer, 0, 16, 4)), Kind::Abort), "row", "row.number"),
    named(
        unoptimised(rust(reads("of_field", Kind::NullPointer, 0, 24, 8)), Kind::Abort),
        "picture.row",
        "picture.row.total",
    ),
    computed(rust(reads("null_read", Kind::NullPointer, 0, 16, 4)), Kind::NearNull, 16),
    rust(writes("null_write", Kind::NullPointer, 0, 24, 8)),
    computed(rust(reads("near_null", Kind::NearNull, 0x30, 16, 4)), Kind::NearNull, 0x40),
    computed(rust(reads("non_canonical", Kind::NonCanonical, ODD, 16, 4)), Kind::NonCanonical, ODD + 16),
    // Without optimization the standard library panics on unaligned pointers.
    unoptimised(rust(reads("uninitialised", Kind::PoisonedPointer, 0x0101_0101_0101_0101, 16, 4)), Kind::Abort),
    unoptimised(rust(reads("freed", Kind::PoisonedPointer, 0xdfdf_dfdf_dfdf_dfdf, 24, 8)), Kind::Abort),
    computed(rust(reads("unmapped", Kind::Unmapped, 0x1234_0000_0000, 24, 8)), Kind::Unmapped, 0x1234_0000_0018),
    may_name(rust(accesses("constant_write", Kind::WriteToReadOnly, Access::WRITE, 4)), "dst"),
    may_name(rust(row("call_null", Kind::JumpToNull)), "function"),
    may_name(rust(row("call_nowhere", Kind::JumpToNowhere)), "function"),
    rust(row("panics", Kind::Abort)),
    rust(row("aborts", Kind::Abort)),
    rust(row("overflow", Kind::StackOverflow)),
];
