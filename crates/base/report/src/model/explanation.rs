//! Why a process died, as far as its report shows.
//!
//! The crate `coroner-explain` fills this in, as a symbolicator fills in names. Crash report files
//! never contain it, and explanations delivered with a report are recomputed when it is shown, so
//! old reports benefit from better analysis.

use super::address::{Address, Bytes};
use super::fault_kind::FaultKind;
use super::lock_wait::LockWait;
use crate::wire::Access;
use serde::{Deserialize, Serialize};

/// Why a process died.
///
/// Field names of the JSON form are stable; fields may be added. Unknown values are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Explanation {
    /// The cause in one sentence: one line, without a full stop.
    pub headline: String,
    /// Kind of fault or end.
    pub kind: FaultKind,
    /// Certainty of [`Self::kind`] and [`Self::operand`].
    pub certainty: Certainty,
    /// The instruction's memory access.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<MemoryAccess>,
    /// The function in which the fault happened.
    ///
    /// For a jump to an address without code, the function that jumped.
    pub function: Option<String>,
    /// The instruction at which the thread stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instruction: Option<Instruction>,
    /// The call that led to an address without code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<Instruction>,
    /// The operand that was bad.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operand: Option<BadOperand>,
    /// The instruction that set the register of [`Self::operand`].
    ///
    /// Present if every path to the fault passes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_set: Option<LastSet>,
    /// The source variable that held the bad value, from debug information.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variable: Option<SourceValue>,
    /// The repeating calls of a stack overflow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recursion: Option<Recursion>,
    /// An overwritten return address, if the thread's hardware shadow stack reveals one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overwritten_return: Option<OverwrittenReturn>,
    /// Good addresses that differ from the bad one by a single bit, the likeliest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bit_flips: Vec<BitFlip>,
    /// Difference between the code that ran and the image's file.
    pub code_change: Option<CodeChange>,
    /// Sentence on what the crashed or unresponsive thread waits for.
    ///
    /// Example: `thread 3 waits for thread 7, which waits for thread 3`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    /// Sentence on where the hung thread spent the time.
    ///
    /// Example: `93 % in save, blocked in fdatasync`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spent: Option<String>,
    /// Waits of the threads, each with the thread that holds the object.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<LockWait>,
    /// Threads that wait for each other forever: each for the next, the last for the first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deadlocks: Vec<Vec<u64>>,
    /// Other known facts, one sentence each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub facts: Vec<String>,
}

/// A return address on the stack that differs from the one that the shadow stack still holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct OverwrittenReturn {
    /// Index of the frame with the overwritten return address, from 0.
    pub frame: usize,
    /// Address that the overwritten return address leads to.
    pub leads_to: Address,
    /// Address that the call was to return to.
    pub was: Address,
}

/// Certainty of a statement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Certainty {
    /// The recorded data proves the statement.
    ///
    /// Either the system reports it, or the operand's address equals the one that the processor
    /// reported.
    Certain,
    /// The recorded data agrees with the statement, but may also agree with another.
    Possible,
    /// Nothing was found that supports a statement.
    #[default]
    #[serde(other)]
    Unknown,
}

impl Certainty {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Certainty::Certain => "certain",
            Certainty::Possible => "possible",
            Certainty::Unknown => "unknown",
        }
    }
}

/// An instruction's memory access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct MemoryAccess {
    /// Kind of access: read, write or instruction fetch.
    ///
    /// `None` if the instruction reads and writes and the processor doesn't report which of them
    /// failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Access>,
    /// Width in bytes; `None` for instructions without a fixed width.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width: Option<u32>,
    /// The accessed address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Address>,
}

/// A machine instruction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Instruction {
    /// Address of the instruction.
    pub address: Address,
    /// Assembly text, in Intel syntax on x86_64.
    pub text: String,
}

/// The operand that was bad: its address is `value + index * scale + displacement`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct BadOperand {
    /// The operand as the instruction has it, such as `[rax+8]`.
    pub text: String,
    /// The register that held the bad value; `None` if it may be either of two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub register: Option<String>,
    /// The value of `register`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Address>,
    /// The constant that the instruction adds to the registers.
    ///
    /// If the register holds a structure's address, this is a field's offset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub displacement: Option<i64>,
    /// The second register, if the operand has two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<Index>,
    /// The allocator or compiler that fills memory with the register's value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
}

/// The instruction that set a register to the bad value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct LastSet {
    /// The instruction, in the function that crashed.
    pub instruction: Instruction,
    /// Whether the instruction is a call that returned the value.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_returned: bool,
    /// Name of the called function, if the instruction is a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// Source file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Line in the source file, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
}

/// A value that has a name in the source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct SourceValue {
    /// The variable or its field, such as `row->pixels`.
    pub name: String,
    /// The value of the variable.
    pub value: Address,
    /// The accessed part of the variable, such as `row->pixels->width`, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accessed: Option<String>,
}

/// A register that an operand adds to another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Index {
    /// Name of the register.
    pub register: String,
    /// Value of the register.
    pub value: Address,
    /// Factor that the value is multiplied by.
    pub scale: u32,
}

/// A good address that differs from a bad one by a single bit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct BitFlip {
    /// The good address.
    pub address: Address,
    /// Index of the flipped bit, 0 being the lowest.
    pub bit: u32,
    /// Memory at the good address, such as `the stack of thread 7`.
    pub place: String,
}

/// A difference between the code that ran and the image's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CodeChange {
    /// Address of the first byte that differs.
    pub address: Address,
    /// Probable kind of the change.
    pub kind: CodeChangeKind,
    /// The bytes that ran.
    pub found: Bytes,
    /// The bytes in the file.
    pub expected: Bytes,
}

/// Kind of a difference between code in memory and in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CodeChangeKind {
    /// A single bit differs: memory failed, or a stray write hit it.
    OneBit,
    /// A breakpoint instruction, as written by debuggers and probes.
    Breakpoint,
    /// A patch, a hook or another build.
    #[serde(other)]
    Other,
}

/// The calls that repeat on a stack that has overflowed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Recursion {
    /// The functions of one round, innermost first.
    pub functions: Vec<String>,
    /// Number of rounds that the report counts.
    pub rounds: u64,
    /// Average bytes of stack per round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}
