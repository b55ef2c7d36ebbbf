//! Call frame instructions: compute the row of the unwind table that holds at an address (DWARF 5,
//! section 6.4).
//!
//! Limits: at most eight remembered rows; columns of vector registers are skipped.

use crate::arch::Architecture;
use crate::cfi::{Cie, Fde};
use crate::cursor::{Bases, Cursor};
use crate::frame::{Malformed, Problem};
use crate::rule::{Row, Rule};
use coroner_process::memory::Memory;

/// Number of register columns that are kept: the general registers of both architectures and
/// x86_64's return address.
pub(crate) const COLUMNS: usize = 33;
/// Maximum number of rows that `DW_CFA_remember_state` may store.
const MAX_REMEMBERED_ROWS: u32 = 8;

/// Rule for computing the CFA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CfaRule {
    /// Not defined yet.
    #[default]
    Undefined,
    /// `cfa = reg[register] + offset`.
    Register {
        /// DWARF number of the register.
        register: u8,
        /// Offset in bytes.
        offset: i64,
    },
    /// `cfa = evaluate(expression)`.
    Expression(Block),
}

/// Rule for finding the caller's value of a register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RegisterRule {
    /// Not mentioned. Registers that a call preserves are unchanged.
    #[default]
    Unspecified,
    /// The value can't be recovered; for the return address: there is no caller.
    Undefined,
    /// `reg' = reg`.
    Same,
    /// `reg' = *(cfa + offset)`.
    Offset(i32),
    /// `reg' = cfa + offset`.
    ValueOffset(i32),
    /// `reg' = reg[other]`.
    Register(u8),
    /// `reg' = *evaluate(expression, cfa)`.
    Expression(Block),
    /// `reg' = evaluate(expression, cfa)`.
    ValueExpression(Block),
}

/// A block of expression bytes: the place of its length, relative to `RowState::origin`. (Entries
/// are at most 2 GiB from their CIE.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block(i32);

/// A row of the unwind table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowState {
    /// The CFA.
    pub cfa: CfaRule,
    /// The rule for each column.
    pub registers: [RegisterRule; COLUMNS],
    /// Address that blocks are relative to: that of the CIE.
    origin: u64,
}

enum Stopped {
    /// The row is complete.
    Row,
    /// `DW_CFA_restore_state`: the caller has the row.
    Restored,
}

impl RowState {
    /// Creates the row before any instruction.
    pub(crate) const fn new(origin: u64) -> RowState {
        RowState { cfa: CfaRule::Undefined, registers: [RegisterRule::Unspecified; COLUMNS], origin }
    }

    /// Returns the address of a block of this row.
    #[inline]
    pub(crate) const fn block_address(&self, block: Block) -> u64 {
        self.origin.wrapping_add_signed(block.0 as i64)
    }

    /// Returns the rule for register `number`.
    #[inline]
    pub(crate) fn register(&self, number: u8) -> RegisterRule {
        self.registers.get(usize::from(number)).copied().unwrap_or_default()
    }

    /// Sets a register's rule. Columns that are not kept (vector registers, states) are ignored.
    fn set(&mut self, register: u64, rule: RegisterRule) {
        if let Some(place) = usize::try_from(register).ok().and_then(|index| self.registers.get_mut(index)) {
            *place = rule;
        }
    }

    /// Returns the simplest rule that is equivalent to this row; `program` is the row's entry.
    pub(crate) fn rule<A: Architecture>(&self, cie: &Cie, program: crate::rule::Program) -> Rule {
        let return_address = self.register(cie.return_register);
        if return_address == RegisterRule::Undefined {
            return Rule::Outermost;
        }
        self.simple::<A>(cie).map_or(Rule::Program(program), Rule::Row)
    }

    pub(crate) fn simple<A: Architecture>(&self, cie: &Cie) -> Option<Row> {
        let CfaRule::Register { register, offset } = self.cfa else { return None };
        let mut row = Row::new(register, i32::try_from(offset).ok()?);
        if cie.return_register != A::RA {
            return None;
        }
        match self.register(cie.return_register) {
            RegisterRule::Offset(offset) => row = row.with_saved::<A>(A::RA, offset.into())?,
            RegisterRule::Unspecified | RegisterRule::Same if A::LINK_REGISTER => {}
            _ => return None,
        }
        for number in A::SAVED.get(..A::SAVED_COUNT.wrapping_sub(1))? {
            match self.register(*number) {
                RegisterRule::Unspecified | RegisterRule::Same => {}
                RegisterRule::Offset(offset) => row = row.with_saved::<A>(*number, offset.into())?,
                _ => return None,
            }
        }
        // A rule for the stack pointer itself is not simple; the caller doesn't need those of
        // registers that a call does not preserve.
        matches!(self.register(A::SP), RegisterRule::Unspecified | RegisterRule::Same).then_some(row)
    }

    /// Returns the row of `entry` that holds at `address`, which the entry covers. The cursor must
    /// be in the entry's section.
    ///
    /// # Errors
    /// A [`Problem`] if the data are malformed or unreadable.
    pub(crate) fn compute<M: Memory>(
        cursor: &mut Cursor<'_, M>,
        cie: &Cie,
        entry: &Fde,
        address: u64,
    ) -> Result<RowState, Problem> {
        cursor.seek(entry.instructions.start, entry.instructions.end)?;
        let mut state = cie.initial;
        let mut location = entry.range.start;
        Run { cursor, cie, location: &mut location, address, initial: Some(&cie.initial) }.run(&mut state, 0)?;
        Ok(state)
    }

    /// Runs the initial instructions of `cie`, from the cursor's position to its end, on its own
    /// row.
    pub(crate) fn initial<M: Memory>(cursor: &mut Cursor<'_, M>, cie: &Cie) -> Result<RowState, Problem> {
        let mut state = cie.initial;
        let mut location = 0;
        Run { cursor, cie, location: &mut location, address: u64::MAX, initial: None }.run(&mut state, 0)?;
        Ok(state)
    }
}

/// Execution of a sequence of call frame instructions.
struct Run<'r, 'm, M> {
    cursor: &'r mut Cursor<'m, M>,
    cie: &'r Cie,
    location: &'r mut u64,
    /// Rows that begin after this address are not needed.
    address: u64,
    /// The row that `DW_CFA_restore` restores from; `None` in a CIE.
    initial: Option<&'r RowState>,
}

impl<M: Memory> Run<'_, '_, M> {
    fn run(&mut self, state: &mut RowState, depth: u32) -> Result<Stopped, Problem> {
        while !self.cursor.is_at_end() {
            let at = self.cursor.address();
            let bad = |what| Problem::Malformed { what, address: at };
            let byte = self.cursor.u8()?;
            let low = u64::from(byte & 0x3f);
            let advance = match byte {
                // DW_CFA_advance_loc
                0x40..=0x7f => low,
                // DW_CFA_offset
                0x80..=0xbf => {
                    let offset = self.factored_unsigned()?;
                    state.set(low, RegisterRule::Offset(offset));
                    continue;
                }
                // DW_CFA_restore
                0xc0..=0xff => {
                    self.restore(state, low)?;
                    continue;
                }
                // DW_CFA_nop
                0x00 => continue,
                // DW_CFA_set_loc
                0x01 => {
                    let bases = Bases::default();
                    let to = self.cursor.pointer(self.cie.pointer_encoding, &bases)?;
                    let to = to.ok_or(bad(Malformed::PointerEncoding))?.wrapping_add(self.cie.bias);
                    if to > self.address {
                        return Ok(Stopped::Row);
                    }
                    *self.location = to;
                    continue;
                }
                // DW_CFA_advance_loc1, 2, 4, DW_CFA_MIPS_advance_loc8
                0x02 => self.cursor.u8()?.into(),
                0x03 => self.cursor.u16()?.into(),
                0x04 => self.cursor.u32()?.into(),
                0x1d => self.cursor.u64()?,
                // DW_CFA_remember_state: the rest runs on a copy, up to the matching restore
                0x0a => {
                    if depth >= MAX_REMEMBERED_ROWS {
                        return Err(bad(Malformed::StateStack));
                    }
                    let mut copy = *state;
                    match self.run(&mut copy, depth.wrapping_add(1))? {
                        Stopped::Restored => continue,
                        Stopped::Row => {
                            *state = copy;
                            return Ok(Stopped::Row);
                        }
                    }
                }
                // DW_CFA_restore_state
                0x0b => {
                    return if depth == 0 { Err(bad(Malformed::StateStack)) } else { Ok(Stopped::Restored) };
                }
                _ => {
                    self.define(state, byte, at)?;
                    continue;
                }
            };
            let to = self.location.wrapping_add(advance.wrapping_mul(self.cie.code_alignment));
            if to > self.address {
                return Ok(Stopped::Row);
            }
            *self.location = to;
        }
        Ok(Stopped::Row)
    }

    /// Runs an instruction that defines the CFA or a register.
    fn define(&mut self, state: &mut RowState, byte: u8, at: u64) -> Result<(), Problem> {
        let bad = |what| Problem::Malformed { what, address: at };
        let defined = |state: &RowState| match state.cfa {
            CfaRule::Register { register, offset } => Ok((register, offset)),
            _ => Err(bad(Malformed::Opcode)),
        };
        match byte {
            // DW_CFA_offset_extended, DW_CFA_restore_extended
            0x05 => {
                let register = self.cursor.uleb()?;
                let offset = self.factored_unsigned()?;
                state.set(register, RegisterRule::Offset(offset));
            }
            0x06 => {
                let register = self.cursor.uleb()?;
                self.restore(state, register)?;
            }
            // DW_CFA_undefined, DW_CFA_same_value, DW_CFA_register
            0x07 => state.set(self.cursor.uleb()?, RegisterRule::Undefined),
            0x08 => state.set(self.cursor.uleb()?, RegisterRule::Same),
            0x09 => {
                let register = self.cursor.uleb()?;
                let other = self.cursor.uleb()?;
                // A vector register, whose value is not carried, makes this one unknown.
                let rule = u8::try_from(other).map_or(RegisterRule::Undefined, RegisterRule::Register);
                state.set(register, rule);
            }
            // DW_CFA_def_cfa, DW_CFA_def_cfa_register, DW_CFA_def_cfa_offset
            0x0c => {
                let register = self.cfa_register()?;
                let offset = self.cursor.uleb()? as i64;
                state.cfa = CfaRule::Register { register, offset };
            }
            0x0d => {
                let register = self.cfa_register()?;
                let (_, offset) = defined(state)?;
                state.cfa = CfaRule::Register { register, offset };
            }
            0x0e => {
                let offset = self.cursor.uleb()? as i64;
                let (register, _) = defined(state)?;
                state.cfa = CfaRule::Register { register, offset };
            }
            // DW_CFA_def_cfa_sf, DW_CFA_def_cfa_offset_sf
            0x12 => {
                let register = self.cfa_register()?;
                let offset = self.cursor.sleb()?.wrapping_mul(self.cie.data_alignment);
                state.cfa = CfaRule::Register { register, offset };
            }
            0x13 => {
                let offset = self.cursor.sleb()?.wrapping_mul(self.cie.data_alignment);
                let (register, _) = defined(state)?;
                state.cfa = CfaRule::Register { register, offset };
            }
            // DW_CFA_def_cfa_expression, DW_CFA_expression, DW_CFA_val_expression
            0x0f => state.cfa = CfaRule::Expression(self.block()?),
            0x10 => {
                let register = self.cursor.uleb()?;
                state.set(register, RegisterRule::Expression(self.block()?));
            }
            0x16 => {
                let register = self.cursor.uleb()?;
                state.set(register, RegisterRule::ValueExpression(self.block()?));
            }
            // DW_CFA_offset_extended_sf, DW_CFA_val_offset, DW_CFA_val_offset_sf
            0x11 => {
                let register = self.cursor.uleb()?;
                let offset = self.factored_signed()?;
                state.set(register, RegisterRule::Offset(offset));
            }
            0x14 => {
                let register = self.cursor.uleb()?;
                let offset = self.factored_unsigned()?;
                state.set(register, RegisterRule::ValueOffset(offset));
            }
            0x15 => {
                let register = self.cursor.uleb()?;
                let offset = self.factored_signed()?;
                state.set(register, RegisterRule::ValueOffset(offset));
            }
            // DW_CFA_AARCH64_negate_ra_state_with_pc, DW_CFA_AARCH64_negate_ra_state (on other
            // machines DW_CFA_GNU_window_save): whether the return address is signed; codes are
            // always removed.
            0x2c | 0x2d => {}
            // DW_CFA_GNU_args_size: of use to exceptions only
            0x2e => {
                self.cursor.uleb()?;
            }
            // DW_CFA_GNU_negative_offset_extended
            0x2f => {
                let register = self.cursor.uleb()?;
                let offset = self.factored_unsigned()?;
                state.set(register, RegisterRule::Offset(offset.wrapping_neg()));
            }
            _ => return Err(bad(Malformed::Opcode)),
        }
        Ok(())
    }

    fn restore(&mut self, state: &mut RowState, register: u64) -> Result<(), Problem> {
        let Some(initial) = self.initial else { return Err(self.cursor.malformed(Malformed::Opcode)) };
        let rule = u8::try_from(register).map_or(RegisterRule::Unspecified, |number| initial.register(number));
        state.set(register, rule);
        Ok(())
    }

    fn cfa_register(&mut self) -> Result<u8, Problem> {
        let number = self.cursor.uleb()?;
        if number < 32 { Ok(number as u8) } else { Err(self.cursor.malformed(Malformed::OutOfRange)) }
    }

    fn factored_unsigned(&mut self) -> Result<i32, Problem> {
        let offset = (self.cursor.uleb()? as i64).wrapping_mul(self.cie.data_alignment);
        i32::try_from(offset).map_err(|_| self.cursor.malformed(Malformed::OutOfRange))
    }

    fn factored_signed(&mut self) -> Result<i32, Problem> {
        let offset = self.cursor.sleb()?.wrapping_mul(self.cie.data_alignment);
        i32::try_from(offset).map_err(|_| self.cursor.malformed(Malformed::OutOfRange))
    }

    /// Skips a block and returns its place.
    fn block(&mut self) -> Result<Block, Problem> {
        let start = self.cursor.address().wrapping_sub(self.cie.address) as i64;
        let length = self.cursor.uleb()?;
        self.cursor.skip(length)?;
        i32::try_from(start).map(Block).map_err(|_| self.cursor.malformed(Malformed::OutOfRange))
    }
}
