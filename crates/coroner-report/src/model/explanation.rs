//! Why a process died, as far as its report says: filled in by the crate `coroner-explain`, as a symbolicator fills in names. No report
//! file has it: a report that is read later gains when the analysis does.

use super::address::{Address, Bytes};
use crate::wire::Access;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// Why the process died. Field names are stable; new ones may come. What is not known is left out.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Explanation {
    /// The cause in one sentence, without a full stop: of one line, of at most 400 characters.
    pub headline: String,
    /// What kind of end it was.
    pub kind: FaultKind,
    /// How far what is said here can be trusted.
    pub certainty: Certainty,
    /// What the instruction did to memory.
    pub access: Option<MemoryAccess>,
    /// The instruction at which the thread stopped.
    pub instruction: Option<Instruction>,
    /// The call that led to an address without code, of a jump into nowhere.
    pub call: Option<Instruction>,
    /// The operand that was bad.
    pub operand: Option<BadOperand>,
    /// The instruction that gave the operand's register its value, where that is sure: it is in the same basic block, as far as the
    /// report's code goes.
    pub last_set: Option<Instruction>,
    /// Where the address lies, or what is near it.
    pub place: Option<Place>,
    /// Whether the code that ran is what the image's file has.
    pub code: Option<CodeCheck>,
    /// Of a stack overflow: what repeats.
    pub recursion: Option<Recursion>,
    /// What else is known, each a sentence.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub facts: Vec<String>,
}

/// Kinds of ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FaultKind {
    /// A null pointer was used, or a field or an element by one.
    NullPointer,
    /// An address within the first 64 KiB, where nothing is mapped, whose register was not 0.
    NearNull,
    /// An address that the processor can't have: its upper bits are no sign extension.
    NonCanonical,
    /// A register holds what allocators and debuggers fill freed memory or memory without a value with.
    PoisonedPointer,
    /// An address at which nothing is mapped, of none of the other kinds.
    WildPointer,
    /// An address that is mapped without any access, of no stack that was full.
    GuardPage,
    /// The stack was full.
    StackOverflow,
    /// A write to memory that may be read alone.
    WriteToReadOnly,
    /// A read of memory that may not be read.
    ReadOfUnreadable,
    /// A file that is mapped has become shorter than its mapping, or could not be read (SIGBUS).
    TruncatedMapping,
    /// An address that is not aligned as the instruction needs it.
    Unaligned,
    /// A jump to memory that holds data.
    ExecuteOfData,
    /// A jump to the null address, or near it.
    JumpToNull,
    /// A jump to an address at which nothing is mapped.
    JumpToNowhere,
    /// A division by zero.
    DivisionByZero,
    /// A division whose quotient has no room.
    DivisionOverflow,
    /// An instruction that compilers put where a program can't go on: `ud2`, `brk`, `udf`.
    Trap,
    /// A breakpoint of a debugger or of the program.
    Breakpoint,
    /// Bytes that are no instruction of the processor.
    IllegalInstruction,
    /// An instruction that programs may not use.
    PrivilegedInstruction,
    /// A pointer's authentication failed (arm64), or a jump went to a place that is no landing pad.
    ControlFlowViolation,
    /// A pointer's tag was not its memory's (arm64 MTE).
    TagMismatch,
    /// The program ended itself: `abort`, a failed assertion, a check of the C library.
    Abort,
    /// A panic of Rust.
    Panic,
    /// An exception that nobody caught.
    Exception,
    /// A system call that a filter refused.
    SystemCall,
    /// A process sent the signal.
    SentSignal,
    /// A thread did not answer.
    Hang,
    /// The app asked for the report.
    Requested,
    /// What the report says is not enough to tell.
    #[default]
    #[serde(other)]
    Unknown,
}

/// How far a statement can be trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Certainty {
    /// What is recorded says it: the address by the instruction's operands is the one that the processor gave, and so on.
    Certain,
    /// It is in accordance with what is recorded, and so might others be.
    Possible,
    /// Nothing was found that says it.
    #[default]
    #[serde(other)]
    Unknown,
}

/// What an instruction did to memory.
#[skip_serializing_none]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryAccess {
    /// Whether it read, wrote, or fetched an instruction.
    pub kind: Access,
    /// How many bytes.
    pub width: Option<u32>,
    /// The address.
    pub address: Option<Address>,
}

/// An instruction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Instruction {
    /// Its address.
    pub address: Address,
    /// As assembly language: Intel's on x86_64.
    pub text: String,
    /// Its bytes.
    pub bytes: Bytes,
}

/// The operand that could not be used.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BadOperand {
    /// As the instruction has it.
    pub text: String,
    /// The register whose value was bad; `None` if that is not sure.
    pub register: Option<String>,
    /// The register's value.
    pub value: Option<Address>,
    /// What the instruction adds to the register: the offset of a field.
    pub offset: Option<i64>,
    /// The index, where the instruction adds one: register, value, and by what that is multiplied.
    pub index: Option<(String, Address, u32)>,
    /// Who fills memory with what the register holds.
    pub pattern: Option<String>,
}

/// Where an address lies.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Place {
    /// What is there, in words: `[heap]`, the path of a file, `stack of thread 3`.
    pub what: Option<String>,
    /// What may be done with the mapping that holds it, as `r-x`; `None` where nothing is mapped.
    pub permissions: Option<String>,
    /// How far the address is behind the mapping's start; where nothing is mapped, behind the end of the nearest mapping below.
    pub above: Option<u64>,
    /// Where nothing is mapped: how far the next mapping is.
    pub below: Option<u64>,
}

/// Whether code is what the image's file has.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeCheck {
    /// What was found.
    pub result: CodeResult,
    /// How many bytes were compared.
    pub compared: usize,
    /// How many of them differ.
    pub different: usize,
    /// Where the first difference is.
    pub first: Option<Address>,
}

/// What the comparison of code with its file says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CodeResult {
    /// They are the same.
    Same,
    /// One bit differs: hardware that fails, or a stray write.
    OneBit,
    /// A debugger's breakpoint was set.
    Breakpoint,
    /// Other bytes: a patch, a hook, or another build of the file.
    Different,
    /// It is of a later version.
    #[default]
    #[serde(other)]
    Unknown,
}

/// What repeats on a stack that was full.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Recursion {
    /// The functions of one round, the innermost first.
    pub functions: Vec<String>,
    /// How many rounds there are, of which some may have been left out of the report.
    pub rounds: u64,
    /// Bytes of stack that one round takes.
    pub bytes: Option<u64>,
}
