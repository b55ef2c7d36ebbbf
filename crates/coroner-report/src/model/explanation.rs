//! Why a process died, as far as its report says: filled in by the crate `coroner-explain`, as a symbolicator fills in names. No report
//! file has it: an old report gains when the analysis does.

use super::address::Address;
use super::fault_kind::FaultKind;
use crate::wire::Access;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// Why a process died. Field names of the JSON form are stable; new ones may come. What is not known is left out.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Explanation {
    /// The cause in one sentence: one line, without a full stop.
    pub headline: String,
    /// What kind of end it was.
    pub kind: FaultKind,
    /// How far [`Self::kind`] and [`Self::operand`] can be trusted.
    pub certainty: Certainty,
    /// What the instruction did to memory.
    pub access: Option<MemoryAccess>,
    /// The instruction at which the thread stopped.
    pub instruction: Option<Instruction>,
    /// Of a jump to where no code is: the call that led there.
    pub call: Option<Instruction>,
    /// The operand that was bad.
    pub operand: Option<BadOperand>,
    /// Of a stack overflow: what repeats.
    pub recursion: Option<Recursion>,
    /// What else is known, each a sentence.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub facts: Vec<String>,
}

/// How far a statement can be trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

/// What an instruction did to memory.
#[skip_serializing_none]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryAccess {
    /// Whether it read, wrote, or fetched an instruction. `None` if it reads and writes and the processor does not say at which it stopped.
    pub kind: Option<Access>,
    /// How many bytes. `None` of instructions whose width is not fixed.
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
    /// As assembly language: Intel's syntax on x86_64.
    pub text: String,
}

/// The operand that could not be used: `value + index * scale + displacement` is the address.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BadOperand {
    /// As the instruction has it, such as `[rax+8]`.
    pub text: String,
    /// The register that held the bad value; `None` if it may be one or the other.
    pub register: Option<String>,
    /// The value of that register.
    pub value: Option<Address>,
    /// What the instruction adds to the registers: with a structure's address in the register, the offset of a field.
    pub displacement: Option<i64>,
    /// The other register, where the operand has two.
    pub index: Option<Index>,
    /// Who fills memory with what the register held.
    pub pattern: Option<String>,
}

/// A register that an operand adds to another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Index {
    /// The register.
    pub register: String,
    /// Its value.
    pub value: Address,
    /// What the value is multiplied by.
    pub scale: u32,
}

/// What repeats on a stack that has overflowed.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Recursion {
    /// The functions of one round, the innermost first.
    pub functions: Vec<String>,
    /// How many rounds the report counts.
    pub rounds: u64,
    /// Bytes of stack that one round takes, on average.
    pub bytes: Option<u64>,
}
