//! Zombies section: the crashed thread's registers that hold the address of a deallocated
//! Objective-C object, and the `NSException` that was deallocated last. Reads the app's memory:
//! names, and the current content of those addresses.

use coroner_process::registers::Registers;
use coroner_report::wire::{SectionKind, Zombie};

use super::SectionResult;
use crate::run::ReportWriter;
use crate::session::{CrashSession, memory};
use crate::zombies::{self, MAX_TEXT};

#[cfg(target_arch = "aarch64")]
use coroner_process::registers::AARCH64_NAMES as NAMES;
#[cfg(target_arch = "x86_64")]
use coroner_process::registers::X86_64_NAMES as NAMES;

/// Indexes of the first three arguments' registers.
#[cfg(target_arch = "x86_64")]
const ARGUMENTS: [usize; 3] = [5, 4, 1];
#[cfg(target_arch = "aarch64")]
const ARGUMENTS: [usize; 3] = [0, 1, 2];

pub(crate) fn write(session: &mut CrashSession<'_>) -> SectionResult {
    let context = session.context;
    // The registers of an exception that was reported by a call are those of that call.
    if !zombies::is_on() || context.uncaught.is_some() || context.hung.is_some() {
        return SectionResult::Empty;
    }
    let registers = &context.registers;
    let mut encoder = ReportWriter::payload(&mut session.workspace.buffer);
    encoder.begin_array();
    let empty = encoder.position();
    let receiver = zombies::receiver_argument(registers.pc);
    let in_order = receiver.and_then(|argument| ARGUMENTS.get(argument)).copied();
    // The receiver first; each address once.
    let others = (0..NAMES.len()).filter(|register| Some(*register) != in_order);
    for register in in_order.into_iter().chain(others) {
        let value = value(registers, register);
        let is_repeated = in_order.is_some_and(|first| first != register && self::value(registers, first) == value)
            || (0..register).any(|before| self::value(registers, before) == value && Some(before) != in_order);
        let Some(class) = zombies::class_at(value).filter(|_| !is_repeated) else { continue };
        let (mut name, mut now, mut selector) = ([0; MAX_TEXT], [0; MAX_TEXT], [0; MAX_TEXT]);
        let class_now = zombies::class_now(&mut memory(), value);
        let class_now = class_now.map(|class| zombies::class_name(&mut memory(), class, &mut now));
        let argument = receiver.filter(|_| in_order == Some(register)).and_then(|receiver| ARGUMENTS.get(receiver + 1));
        let selector = argument.map(|argument| {
            let address = self::value(registers, *argument);
            zombies::copy_text(&mut memory(), address, &mut selector)
        });
        let zombie = Zombie {
            address: value,
            class: zombies::class_name(&mut memory(), class, &mut name),
            register: NAMES.get(register).map(|name| name.as_bytes()),
            selector: selector.filter(|selector| !selector.is_empty()),
            class_now,
            ..Zombie::default()
        };
        if !zombie.class.is_empty() {
            zombie.encode(&mut encoder);
        }
    }
    zombies::with_last_exception(|address, class, name, reason| {
        let mut class_text = [0; MAX_TEXT];
        let class = zombies::class_name(&mut memory(), class, &mut class_text);
        Zombie { address, class, name: Some(name), reason: Some(reason), ..Zombie::default() }.encode(&mut encoder)
    });
    if encoder.position() == empty {
        return SectionResult::Empty;
    }
    encoder.end();
    let length = encoder.position();
    session.seal(SectionKind::ZOMBIES, length)
}

fn value(registers: &Registers, register: usize) -> u64 {
    registers.general().get(register).copied().unwrap_or(0)
}
