//! Steps to a caller on x86_64 Windows with the unwind data in the images' files.
//!
//! Source: `.pdata`; learn.microsoft.com, "x64 exception handling".
//!
//! A caller is accepted if unwind data prove it, or if it called a function without unwind data and
//! its return address follows a call.

use coroner_process::memory::Memory;
use coroner_process::registers::X86_64Registers;
use coroner_report::wire::AddressKind;
use coroner_unwind::{X86_64, follows_call};

/// Maximum length of a chain of unwind data for one function.
const MAX_CHAIN_LENGTH: usize = 32;
/// Maximum size of an epilogue, in bytes: an addition, eight pops of two bytes, a jump.
const MAX_EPILOGUE_BYTES: usize = 32;
/// rsp, in the processor's numbering of registers.
const RSP: usize = 4;
/// The processor's registers in DWARF order.
const DWARF_ORDER: [usize; 16] = [0, 2, 1, 3, 6, 7, 5, 4, 8, 9, 10, 11, 12, 13, 14, 15];

/// Returns the caller's registers, and the kind of its address; `None` without unwind data for the
/// function, or with damaged data.
///
/// `base` is the load address of the image that contains the program counter, `is_return` whether
/// that is a return address.
pub(super) fn step(
    registers: &X86_64Registers,
    is_return: bool,
    base: u64,
    memory: &mut impl Memory,
) -> Option<(X86_64Registers, AddressKind)> {
    let mut general = [0; 16];
    for (value, number) in registers.gpr.iter().zip(DWARF_ORDER) {
        general[number] = *value;
    }
    let mut state = State { general, pc: registers.pc, memory };
    let at = if is_return { registers.pc.wrapping_sub(1) } else { registers.pc };
    let kind = match state.function(base, at) {
        Lookup::Function(function) => state.unwind(&function, at, is_return)?,
        // A leaf function, which doesn't move the stack pointer.
        Lookup::NoFunction if !is_return => {
            let address = state.u64(state.general[RSP])?;
            follows_call::<X86_64, _>(state.memory, address).filter(|follows| *follows)?;
            state.pop_return().map(|()| AddressKind::RETURN)?
        }
        Lookup::NoFunction | Lookup::NoFile => return None,
    };
    let mut caller = X86_64Registers { gpr: [0; 16], pc: state.pc, flags: 0 };
    for (value, number) in caller.gpr.iter_mut().zip(DWARF_ORDER) {
        *value = state.general[number];
    }
    Some((caller, kind))
}

/// `RUNTIME_FUNCTION`, with addresses as they were in the process.
#[derive(Clone, Copy)]
struct Function {
    base: u64,
    begin: u64,
    end: u64,
    unwind: u64,
}

enum Lookup {
    Function(Function),
    /// The image's table has no entry for the address.
    NoFunction,
    NoFile,
}

struct State<'m, M> {
    general: [u64; 16],
    pc: u64,
    memory: &'m mut M,
}

impl<M: Memory> State<'_, M> {
    fn bytes<const N: usize>(&mut self, address: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.memory.read(address, &mut bytes).ok().map(|()| bytes)
    }

    fn u16(&mut self, address: u64) -> Option<u16> {
        self.bytes(address).map(u16::from_le_bytes)
    }

    fn u32(&mut self, address: u64) -> Option<u32> {
        self.bytes(address).map(u32::from_le_bytes)
    }

    fn u64(&mut self, address: u64) -> Option<u64> {
        self.bytes(address).map(u64::from_le_bytes)
    }

    /// Finds the function at an address in the image's exception directory.
    fn function(&mut self, base: u64, at: u64) -> Lookup {
        let Some((table, count)) = self.directory(base) else { return Lookup::NoFile };
        let rva = at.wrapping_sub(base);
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low + (high - low) / 2;
            let Some(function) = self.entry(base, table.wrapping_add(12 * middle)) else { return Lookup::NoFile };
            if rva < function.begin.wrapping_sub(base) {
                high = middle;
            } else if rva >= function.end.wrapping_sub(base) {
                low = middle + 1;
            } else {
                return Lookup::Function(function);
            }
        }
        Lookup::NoFunction
    }

    /// Returns the address and number of entries of the function table; an image without a table
    /// has none. `None` without the image's file.
    fn directory(&mut self, base: u64) -> Option<(u64, u64)> {
        let headers = base.wrapping_add(self.u32(base.wrapping_add(0x3c))?.into());
        let optional = headers.wrapping_add(24);
        if self.bytes(headers)? != *b"PE\0\0" || self.u16(optional)? != 0x20b {
            return None;
        }
        // The fourth data directory.
        let (at, size) = (self.u32(optional.wrapping_add(112 + 24))?, self.u32(optional.wrapping_add(112 + 28))?);
        Some((base.wrapping_add(at.into()), u64::from(size) / 12))
    }

    fn entry(&mut self, base: u64, at: u64) -> Option<Function> {
        let mut word = |place: u64| self.u32(at.wrapping_add(place)).map(|rva| base.wrapping_add(rva.into()));
        Some(Function { base, begin: word(0)?, end: word(4)?, unwind: word(8)? })
    }

    /// Unwinds to the caller. Returns the kind of address found there.
    fn unwind(&mut self, function: &Function, at: u64, is_return: bool) -> Option<AddressKind> {
        // The entry may refer to another one.
        let mut function = *function;
        if function.unwind.wrapping_sub(function.base) & 1 != 0 {
            let other = self.entry(function.base, function.unwind.wrapping_sub(1))?;
            function.unwind = other.unwind;
        }
        let mut offset = at.wrapping_sub(function.begin);
        for number in 0..MAX_CHAIN_LENGTH {
            let [version, prologue, count, frame] = self.bytes(function.unwind)?;
            if !matches!(version & 7, 1 | 2) {
                return None;
            }
            if number == 0 && !is_return && offset >= prologue.into() && self.epilogue(&function, at).is_some() {
                return Some(AddressKind::RETURN);
            }
            let codes = function.unwind.wrapping_add(4);
            if self.codes(codes, count.into(), frame, offset)? {
                return Some(AddressKind::INSTRUCTION);
            }
            // UNW_FLAG_CHAININFO
            if version >> 3 & 4 == 0 {
                return self.pop_return().map(|()| AddressKind::RETURN);
            }
            let after = codes.wrapping_add(2 * u64::from(count).next_multiple_of(2));
            function = self.entry(function.base, after)?;
            // Its prologue is complete.
            offset = u64::MAX;
        }
        None
    }

    /// Undoes the prologue's operations up to `offset`. Returns `true` if the caller was in a
    /// machine frame.
    fn codes(&mut self, at: u64, count: usize, frame: u8, offset: u64) -> Option<bool> {
        let mut codes = Vec::with_capacity(count);
        for number in 0..count {
            codes.push(self.u16(at.wrapping_add(2 * number as u64))?);
        }
        let code = |number: usize| codes.get(number).map(|code| u64::from(*code));
        let register = usize::from(frame & 15);
        let is_set = |code: &u16| code >> 8 & 15 == 3 && u64::from(code & 0xff) <= offset;
        let base = if register != 0 && codes.iter().any(is_set) {
            self.general[register].wrapping_sub(16 * u64::from(frame >> 4))
        } else {
            self.general[RSP]
        };
        let mut number = 0;
        while let Some(this) = code(number) {
            let (done_at, operation, info) = (this & 0xff, this >> 8 & 15, (this >> 12) as usize);
            let far = || Some(code(number + 1)? | code(number + 2)? << 16);
            let slots = match (operation, info) {
                (1, 0) | (4 | 8, _) => 2,
                (1 | 5 | 9, _) => 3,
                (0 | 2 | 3 | 6 | 10, _) => 1,
                _ => return None,
            };
            // 6 describes epilogues.
            if done_at <= offset && operation != 6 {
                let sp = self.general[RSP];
                match operation {
                    0 => {
                        self.general[info] = self.u64(sp)?;
                        self.general[RSP] = sp.wrapping_add(8);
                    }
                    1 if info == 0 => self.general[RSP] = sp.wrapping_add(8 * code(number + 1)?),
                    1 => self.general[RSP] = sp.wrapping_add(far()?),
                    2 => self.general[RSP] = sp.wrapping_add(8 * info as u64 + 8),
                    3 => self.general[RSP] = base,
                    4 => self.general[info] = self.u64(base.wrapping_add(8 * code(number + 1)?))?,
                    5 => self.general[info] = self.u64(base.wrapping_add(far()?))?,
                    10 => {
                        let sp = sp.wrapping_add(8 * u64::from(info == 1));
                        self.pc = self.u64(sp)?;
                        self.general[RSP] = self.u64(sp.wrapping_add(24))?;
                        return Some(true);
                    }
                    // Vector registers are not needed to find the caller.
                    _ => {}
                }
            }
            number += slots;
        }
        Some(false)
    }

    /// Executes the rest of an epilogue at `at`, if there is one.
    ///
    /// An epilogue only has an addition to the stack pointer, pops, and a return or a jump out of
    /// the function.
    fn epilogue(&mut self, function: &Function, at: u64) -> Option<()> {
        let mut code = Vec::new();
        while code.len() < MAX_EPILOGUE_BYTES
            && let Some([byte]) = self.bytes(at.wrapping_add(code.len() as u64))
        {
            code.push(byte);
        }
        let mut rest = code.as_slice();
        let mut general = self.general;
        let wide = |bytes: &[u8]| bytes.first_chunk().map(|bytes| i32::from_le_bytes(*bytes));
        let mut add = |base: usize, number: i32| general[RSP] = general[base].wrapping_add_signed(number.into());
        match rest {
            [0x48, 0x83, 0xc4, number, after @ ..] => {
                add(RSP, i32::from(number.cast_signed()));
                rest = after;
            }
            [0x48, 0x81, 0xc4, after @ ..] => {
                add(RSP, wide(after)?);
                rest = after.get(4..)?;
            }
            // lea rsp, [register+number]
            [rex @ (0x48 | 0x49), 0x8d, mode, after @ ..] if mode & 0x38 == 0x20 && mode & 7 != 4 => {
                let base = usize::from(mode & 7 | (rex & 1) << 3);
                match mode >> 6 {
                    1 => {
                        add(base, i32::from(after.first()?.cast_signed()));
                        rest = after.get(1..)?;
                    }
                    2 => {
                        add(base, wide(after)?);
                        rest = after.get(4..)?;
                    }
                    _ => return None,
                }
            }
            _ => {}
        }
        loop {
            let (number, after) = match rest {
                [pop @ 0x58..=0x5f, after @ ..] => (pop - 0x58, after),
                [0x41, pop @ 0x58..=0x5f, after @ ..] => (pop - 0x58 + 8, after),
                _ => break,
            };
            let sp = general[RSP];
            general[usize::from(number)] = self.u64(sp)?;
            general[RSP] = sp.wrapping_add(8);
            rest = after;
        }
        let leaves = |number: i64, length: usize| {
            let next = at.wrapping_add((code.len() - rest.len() + length) as u64);
            let target = next.wrapping_add_signed(number);
            !(function.begin..function.end).contains(&target)
        };
        let is_end = match rest {
            [0xc3, ..] | [0xf3, 0xc3, ..] | [0xff, 0x25, ..] | [0x48, 0xff, 0x25 | 0xe0..=0xe7, ..] => true,
            [0xeb, number, ..] => leaves(number.cast_signed().into(), 2),
            [0xe9, after @ ..] => leaves(wide(after)?.into(), 5),
            _ => false,
        };
        if !is_end {
            return None;
        }
        let before = std::mem::replace(&mut self.general, general);
        if self.pop_return().is_none() {
            self.general = before;
            return None;
        }
        Some(())
    }

    fn pop_return(&mut self) -> Option<()> {
        let sp = self.general[RSP];
        self.pc = self.u64(sp)?;
        self.general[RSP] = sp.wrapping_add(8);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::SavedMemory;

    const BASE: u64 = 0x1_4000_0000;
    const STACK: u64 = 0x1_0000;
    /// An address after a call in the second function.
    const CALLER: u64 = BASE + 0x1180;
    const SAVED_RBX: u64 = 0x1111;

    /// Three functions for the tests.
    ///
    /// One has a prologue and an epilogue, one a frame pointer, and one has no unwind data.
    fn image() -> Vec<u8> {
        let mut bytes = vec![0x90; 0x4000];
        let mut put = |at: usize, with: &[u8]| bytes[at..at + with.len()].copy_from_slice(with);
        put(0x3c, &0x80_u32.to_le_bytes());
        put(0x80, b"PE\0\0");
        put(0x98, &0x20b_u16.to_le_bytes());
        put(0x98 + 112 + 24, &[0x2000_u32.to_le_bytes(), 24_u32.to_le_bytes()].concat());
        let entries = [0x1000_u32, 0x1100, 0x3000, 0x1100, 0x1200, 0x3010];
        put(0x2000, &entries.map(u32::to_le_bytes).concat());
        // push rbp; push rbx; sub rsp, 0x28 … add rsp, 0x28; pop rbx; pop rbp; ret
        put(0x1000, &[0x55, 0x53, 0x48, 0x83, 0xec, 0x28]);
        put(0x10f0, &[0x48, 0x83, 0xc4, 0x28, 0x5b, 0x5d, 0xc3]);
        put(0x3000, &[1, 6, 3, 0, 6, 0x42, 2, 0x30, 1, 0x50]);
        // push rbp; mov rbp, rsp …; call
        put(0x1100, &[0x55, 0x48, 0x89, 0xe5]);
        put(0x117b, &[0xe8, 0, 0, 0, 0]);
        put(0x3010, &[1, 4, 2, 5, 4, 0x03, 1, 0x50]);
        bytes
    }

    /// The stack of the first function, called by the second.
    ///
    /// The second function's frame contains space not described by unwind data.
    fn stack() -> Vec<u8> {
        let mut words = vec![0_u64; 5];
        let caller_rbp = STACK + 8 * 12;
        words.extend([SAVED_RBX, caller_rbp, CALLER, 7, 7, 7, 7]);
        // The second function's rbp points here; its caller's return address is 0.
        words.extend([0x2222, 0, 0]);
        words.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    /// Returns the callers' addresses and stack pointers, up to address 0.
    fn callers(pc: u64, words_up: u64, rbp: u64, image: &[u8]) -> Vec<(u64, u64)> {
        let stack = stack();
        let memory = SavedMemory::new(vec![(BASE, image), (STACK, &stack)]);
        let mut registers = X86_64Registers { gpr: [0; 16], pc, flags: 0 };
        (registers.gpr[6], registers.gpr[7]) = (rbp, STACK + 8 * words_up);
        let mut found = Vec::new();
        while let Some((caller, _)) = step(&registers, !found.is_empty(), BASE, &mut &memory) {
            found.push((caller.pc, caller.sp()));
            registers = caller;
        }
        found
    }

    #[test]
    fn the_caller_is_found_at_each_instruction_of_prologue_and_epilogue() {
        let callers_rbp = STACK + 8 * 12;
        // Words from the lowest address of the stack to the stack pointer, and rbp, which the
        // function saves and uses.
        let rows = [
            (0x1000, 7, callers_rbp),
            (0x1001, 6, 1),
            (0x1002, 5, 1),
            (0x1006, 0, 1),
            (0x1050, 0, 1),
            (0x10f0, 0, 1),
            (0x10f4, 5, 1),
            (0x10f5, 6, 1),
            (0x10f6, 7, callers_rbp),
        ];
        for (offset, words_up, rbp) in rows {
            let found = callers(BASE + offset, words_up, rbp, &image());
            assert_eq!(found, [(CALLER, STACK + 8 * 8), (0, STACK + 8 * 14)], "{offset:#x}");
        }
    }

    #[test]
    fn damaged_or_missing_data_yield_no_caller() {
        let mut image = image();
        // An invalid unwind operation.
        image[0x3005] = 0x4f;
        for bytes in [&image[..], &[]] {
            assert_eq!(callers(BASE + 0x1050, 0, 1, bytes), []);
        }
    }
}
