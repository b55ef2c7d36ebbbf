//! Finds the origin of a bad value: the instruction that set the register, and the variable.

use coroner_report::Report;
use coroner_report::model::{Address, Certainty, Explanation, FaultKind, Instruction, LastSet, SourceValue};
use coroner_report::wire::Access;

use crate::code_source::CodeSource;
use crate::instruction::{Class, State};
use crate::last_set::{Function, Setter};
use crate::step::{self, Base, Flow};
use crate::variable::{Named, Names};
use crate::{architecture, decode};

/// Adds the origin if it is certain; code that may differ from what ran is not used.
pub(crate) fn add(report: &Report, source: &dyn CodeSource, explanation: &mut Explanation) {
    let is_memory = explanation.access.is_some();
    let is_division = matches!(explanation.kind, FaultKind::DivisionByZero | FaultKind::DivisionOverflow);
    if explanation.certainty != Certainty::Certain || explanation.code_change.is_some() || !(is_memory || is_division) {
        return;
    }
    let Some(thread) = report.crashed_thread() else { return };
    let Some(registers) = thread.registers.as_ref().filter(|registers| !registers.only_preserved) else { return };
    let (Some(arch), Some(pc)) = (registers.arch, registers.pc()) else { return };
    let state = State::new(report, registers);
    // For a jump to an address without code, the instruction is the call.
    let (at, depth) = match (&explanation.call, &explanation.instruction) {
        (Some(call), _) => (call.address, 1),
        (None, Some(instruction)) if instruction.address == pc => (pc, 0),
        _ => return,
    };
    let Some((instruction, _)) = decode::decode(arch, at, source, &state) else { return };
    // Repeated instructions have changed their registers in earlier iterations.
    if instruction.text.starts_with("rep") {
        return;
    }
    // If a call takes its address from memory, the call itself loads it.
    let by_memory = instruction.class == Class::BranchByMemory && explanation.operand.is_none();
    let operand = explanation.operand.as_ref();
    let (register, part) = match (by_memory, operand) {
        (true, _) => (None, None),
        (false, Some(operand)) => match operand.register.as_deref() {
            Some(name) => {
                let Some((whole, part)) = architecture::whole_register(arch, name) else { return };
                (step::number(arch, whole), part)
            }
            None => (None, None),
        },
        (false, None) => return,
    };
    let function = Function::at(arch, at, source).filter(|function| function.is_verified);
    if let (Some(register), Some(function)) = (register, &function) {
        let found = function.setter(register, at).and_then(|setter| last_set(arch, setter, source, &state));
        explanation.last_set = found;
    }
    let Some(variables) = source.variables(at) else { return };
    let cfa = thread.frames.get(depth).and_then(|frame| frame.cfa).map(|cfa| cfa.0);
    let names = Names {
        function: function.as_ref(),
        variables: &variables,
        source,
        state: &state,
        cfa,
        at,
        pushed: if depth == 1 { architecture::pushed_by_call(arch) } else { 0 },
    };
    explanation.variable = match register {
        Some(register) => {
            let value = operand.and_then(|operand| operand.value).unwrap_or_default();
            // If the variable is larger than the part of the register that was used, the rest may
            // differ.
            let is_whole = |named: &Named| {
                let size = named.type_id.and_then(|type_id| source.size_of(type_id));
                part.is_none_or(|part| size.is_some_and(|size| size <= part) && named.added == 0)
            };
            let named = names.name_register(register, at).filter(is_whole);
            named.map(|named| {
                let is_plain = operand.is_some_and(|operand| operand.index.is_none());
                let is_jump = explanation.access.is_some_and(|access| access.kind == Some(Access::EXECUTE));
                let displacement = operand.and_then(|operand| operand.displacement).unwrap_or(0);
                let width = explanation.access.and_then(|access| access.width);
                let accessed =
                    (is_memory && is_plain && !is_jump).then(|| names.name_field(&named, displacement, width));
                source_value(&named, value, accessed.flatten())
            })
        }
        // The divisor is the value in memory.
        None if is_division => {
            instruction.memory.iter().find(|operand| operand.access == Some(Access::READ)).and_then(|operand| {
                let (base, _) = operand.base.filter(|_| operand.index.is_none())?;
                let base = Base::Register(step::number(arch, base)?);
                let value = explanation.operand.as_ref()?.value?;
                Some(source_value(&names.name_in_memory(base, operand.displacement, operand.width?, at)?, value, None))
            })
        }
        // The call's target is the value of its operand.
        None => instruction.memory.iter().find(|operand| operand.access == Some(Access::READ)).and_then(|operand| {
            let (base, _) = operand.base.filter(|_| operand.index.is_none())?;
            let pointer = names.name_register(step::number(arch, base)?, at)?;
            let target = explanation.access.and_then(|access| access.address)?;
            Some(source_value(&names.name_field(&pointer, operand.displacement, operand.width)?, target, None))
        }),
    };
}

fn source_value(named: &Named, value: Address, accessed: Option<Named>) -> SourceValue {
    SourceValue {
        name: named.path.clone(),
        value: Address(value.0.wrapping_sub(named.added as u64)),
        accessed: accessed.map(|accessed| accessed.path),
    }
}

fn last_set(
    arch: coroner_process::registers::Arch,
    setter: Setter<'_>,
    source: &dyn CodeSource,
    state: &State<'_>,
) -> Option<LastSet> {
    let (step, is_returned) = match setter {
        Setter::Instruction(step) => (step, false),
        Setter::Call(step) => (step, true),
    };
    let target = match step.flow {
        Flow::Call(target) => target,
        _ => None,
    };
    // A caller that knows its callee may keep a value in a register that is normally not preserved.
    if is_returned && !target.is_none_or(|target| Function::returns_a_value(arch, target, source)) {
        return None;
    }
    let address = Address(step.address);
    let (decoded, _) = decode::decode(arch, address, source, state)?;
    let (file, line) = source.line(address).unzip();
    let function = target.filter(|_| is_returned).and_then(|target| source.name(Address(target)));
    Some(LastSet { instruction: Instruction { address, text: decoded.text }, is_returned, function, file, line })
}

/// Describes the instruction that last set a register, in a sentence.
pub(crate) fn describe_last_set(set: &LastSet, register: &str) -> String {
    let place = match (&set.file, set.line) {
        (Some(file), Some(line)) => format!(" ({}:{line})", file.rsplit(['/', '\\']).next().unwrap_or(file)),
        _ => String::new(),
    };
    let Instruction { address, text } = &set.instruction;
    match (set.is_returned, &set.function) {
        (true, Some(function)) => format!("{register} was returned by {function}, called at {address}{place}"),
        (true, None) => format!("{register} was returned by `{text}` at {address}{place}"),
        _ => format!("{register} was last set by `{text}` at {address}{place}"),
    }
}
