//! Why a process died, as far as its report says: filled in by the crate `coroner-explain`, as a symbolicator fills in names. No file
//! of a crash has it, and what was delivered with one is explained anew where it is shown: an old report gains when the analysis does.

use super::address::{Address, Bytes};
use super::fault_kind::FaultKind;
use super::lock_wait::LockWait;
use crate::wire::Access;
use serde::{Deserialize, Serialize};

/// Why a process died. Field names of the JSON form are stable; new ones may come. What is not known is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Explanation {
    /// The cause in one sentence: one line, without a full stop.
    pub headline: String,
    /// What kind of end it was.
    pub kind: FaultKind,
    /// How far [`Self::kind`] and [`Self::operand`] can be trusted.
    pub certainty: Certainty,
    /// What the instruction did to memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<MemoryAccess>,
    /// The function in which it happened; of a jump to where no code is, the one that jumped.
    pub function: Option<String>,
    /// The instruction at which the thread stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instruction: Option<Instruction>,
    /// Of a jump to where no code is: the call that led there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<Instruction>,
    /// The operand that was bad.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operand: Option<BadOperand>,
    /// What set the register of [`Self::operand`], where every way to the instruction comes by there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_set: Option<LastSet>,
    /// What the bad value is in the source, by debug information.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variable: Option<SourceValue>,
    /// Of a stack overflow: what repeats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recursion: Option<Recursion>,
    /// A return address that was overwritten, where the thread has a hardware shadow stack that says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overwritten_return: Option<OverwrittenReturn>,
    /// Of a bad address, what one flipped bit might have made it of, the likeliest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bit_flips: Vec<BitFlip>,
    /// Where the code that ran differs from the image's file.
    pub code_change: Option<CodeChange>,
    /// What the thread waits for that crashed or does not answer, as a sentence: `thread 3 waits for thread 7, which waits for thread 3`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    /// Of a hang: where its thread spent the time while it lasted, as a sentence: `93 % in save, blocked in fdatasync`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spent: Option<String>,
    /// What the threads wait for, and who has it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<LockWait>,
    /// Threads that wait for each other for good: each for the next, the last for the first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deadlocks: Vec<Vec<u64>>,
    /// What else is known, each a sentence.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub facts: Vec<String>,
}

/// A return address on the stack that is not the one that the call pushed, which the shadow stack still has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct OverwrittenReturn {
    /// The frame whose return address it is, from 0.
    pub frame: usize,
    /// Where it leads now.
    pub leads_to: Address,
    /// Where the call was to return to.
    pub was: Address,
}

/// How far a statement can be trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Certainty {
    /// What is recorded says it: the system, or the address by the instruction's operand, which is the one that the processor gave.
    Certain,
    /// What is recorded agrees with it, and might agree with something else.
    Possible,
    /// Nothing was found that says it.
    #[default]
    #[serde(other)]
    Unknown,
}

impl Certainty {
    /// As in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Certainty::Certain => "certain",
            Certainty::Possible => "possible",
            Certainty::Unknown => "unknown",
        }
    }
}

/// What an instruction did to memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct MemoryAccess {
    /// Whether it read, wrote, or fetched an instruction. `None` if it reads and writes and the processor does not say at which it stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Access>,
    /// How many bytes. `None` of instructions whose width is not fixed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width: Option<u32>,
    /// The address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Address>,
}

/// An instruction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Instruction {
    /// Its address.
    pub address: Address,
    /// As assembly language: Intel's syntax on x86_64.
    pub text: String,
}

/// The operand that could not be used: `value + index * scale + displacement` is the address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct BadOperand {
    /// As the instruction has it, such as `[rax+8]`.
    pub text: String,
    /// The register that held the bad value; `None` if it may be one or the other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub register: Option<String>,
    /// The value of that register.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Address>,
    /// What the instruction adds to the registers: with a structure's address in the register, the offset of a field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub displacement: Option<i64>,
    /// The other register, where the operand has two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<Index>,
    /// Who fills memory with what the register held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
}

/// What set a register to the value that was bad.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct LastSet {
    /// The instruction, in the function that crashed.
    pub instruction: Instruction,
    /// Whether it is a call, which returned the value.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_returned: bool,
    /// Of a call: what was called, if it has a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// Source file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Line in it, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
}

/// A value that the source has a name for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct SourceValue {
    /// The variable, or the field of one: `row->pixels`.
    pub name: String,
    /// What it held.
    pub value: Address,
    /// What of it was accessed: `row->pixels->width`. `None` if that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accessed: Option<String>,
}

/// A register that an operand adds to another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Index {
    /// The register.
    pub register: String,
    /// Its value.
    pub value: Address,
    /// What the value is multiplied by.
    pub scale: u32,
}

/// An address that differs from a bad one by one bit, and is good.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct BitFlip {
    /// The good address.
    pub address: Address,
    /// Which bit it is, 0 the lowest.
    pub bit: u32,
    /// What is at the good address: `the stack of thread 7`.
    pub place: String,
}

/// How code that ran differs from the image's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CodeChange {
    /// The first byte that differs.
    pub address: Address,
    /// What that may be.
    pub kind: CodeChangeKind,
    /// The bytes that ran.
    pub found: Bytes,
    /// Those of the file.
    pub expected: Bytes,
}

/// What a difference of code may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CodeChangeKind {
    /// One bit alone differs: memory that failed, or a stray write.
    OneBit,
    /// A breakpoint instruction, as debuggers and probes write it.
    Breakpoint,
    /// A patch, a hook, another build.
    #[serde(other)]
    Other,
}

/// What repeats on a stack that has overflowed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Recursion {
    /// The functions of one round, the innermost first.
    pub functions: Vec<String>,
    /// How many rounds the report counts.
    pub rounds: u64,
    /// Bytes of stack that one round takes, on average.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}
