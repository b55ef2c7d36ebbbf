//! C++ exceptions of another process, read from its memory.
//!
//! Nothing of that process runs: a message that only its `what()` could compute is missing.

use coroner_process::memory::Memory;

use crate::itanium::{self, Current};
use crate::terminate;

/// Text of an exception in the caller's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Length of the mangled type name, in bytes.
    pub type_name: usize,
    /// Length of the message in bytes; 0 if it is empty or unknown.
    pub message: usize,
}

/// Describes the exception that a thread is handling.
///
/// `header` is the first word of the thread's `__cxa_eh_globals`, `caughtExceptions`. Returns
/// `None` if no C++ exception is there.
pub fn describe_caught(
    memory: &mut impl Memory,
    header: u64,
    type_name: &mut [u8],
    message: &mut [u8],
) -> Option<Lengths> {
    let Current::Cpp { object, type_info } = itanium::caught(memory, header)? else { return None };
    let length = itanium::type_name(memory, type_info, type_name);
    let name = type_name.get(..length).filter(|name| !name.is_empty())?;
    let written = terminate::put_value(name, memory, object, message);
    Some(Lengths {
        type_name: length,
        message: written.unwrap_or_else(|| {
            let text = standard_text(memory, object, type_info);
            text.map_or(0, |text| itanium::copy_text(memory, text, message))
        }),
    })
}

/// Returns the address of the text of a `std::runtime_error` or a `std::logic_error`.
///
/// It is the first word after the virtual table's address in both libraries: libstdc++'s
/// `__cow_string`, libc++'s `__libcpp_refstring`.
fn standard_text(memory: &mut impl Memory, object: u64, type_info: u64) -> Option<u64> {
    let (object, type_info) = match itanium::pointee(memory, type_info) {
        Some(pointee) => (memory.read_u64(object).ok()?, pointee),
        None => (object, type_info),
    };
    let mut base = |name: &[u8]| itanium::base(memory, object, type_info, name);
    let base = base(b"St13runtime_error").or_else(|| base(b"St11logic_error"))?;
    memory.read_u64(base.wrapping_add(8)).ok().filter(|text| *text != 0)
}
