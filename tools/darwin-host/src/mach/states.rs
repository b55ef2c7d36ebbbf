//! Thread states by flavor: the machine's states, alone and under the unified header.
//!
//! Flavors and counts: <mach/i386/thread_status.h>, <mach/arm/thread_status.h>.

use crate::host::{
    gate::{
        self, ExceptionState, FLAVOR_EXCEPTION_STATE64, FLAVOR_FLOAT_STATE64, FLAVOR_THREAD_STATE64, LinuxContext,
        ThreadState,
    },
    kernel::thread::Thread,
};

const FLOAT_BYTES: usize = gate::FLOAT_STATE_SIZE;

fn unified(flavor: i32) -> Option<i32> {
    gate::UNIFIED_FLAVORS.iter().find(|(header, _)| *header == flavor).map(|&(_, inner)| inner)
}

/// Whether the host supports the flavor's states.
pub(crate) fn known(flavor: i32) -> bool {
    matches!(flavor, FLAVOR_THREAD_STATE64 | FLAVOR_EXCEPTION_STATE64 | FLAVOR_FLOAT_STATE64)
        || unified(flavor).is_some()
}

/// Formats a flavor for a message: its number, and its name if known.
pub(crate) fn name(flavor: i32) -> String {
    let name = gate::FLAVOR_NAMES.iter().find(|(number, _)| *number == flavor).map_or("unknown", |(_, name)| name);
    format!("{flavor} ({name})")
}

fn bytes_of<T>(value: &T) -> Vec<u8> {
    // SAFETY: the states are plain data without padding.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast::<u8>(), size_of::<T>()) }.to_vec()
}

/// Returns the thread's state of a flavor, as bytes in units of four.
///
/// `None` for an unsupported flavor.
pub(crate) fn get(thread: &Thread, context: &LinuxContext, flavor: i32) -> Option<Vec<u8>> {
    let (signal, address) = thread.last_fault;
    match flavor {
        FLAVOR_THREAD_STATE64 => Some(bytes_of(&gate::thread_state(thread, context))),
        FLAVOR_EXCEPTION_STATE64 => Some(bytes_of::<ExceptionState>(&gate::exception_state(context, signal, address))),
        FLAVOR_FLOAT_STATE64 => Some(gate::float_state(context).to_vec()),
        header => {
            let inner = unified(header)?;
            let state = get(thread, context, inner)?;
            let mut bytes = inner.to_le_bytes().to_vec();
            bytes.extend_from_slice(&((state.len() / 4) as u32).to_le_bytes());
            bytes.extend_from_slice(&state);
            Some(bytes)
        }
    }
}

/// Sets the interrupted thread's state; returns false if the bytes are not a state of the flavor.
pub(crate) fn set(context: &mut LinuxContext, flavor: i32, bytes: &[u8]) -> bool {
    match flavor {
        FLAVOR_THREAD_STATE64 if bytes.len() >= size_of::<ThreadState>() => {
            // SAFETY: long enough, and any bytes are a state.
            let state = unsafe { bytes.as_ptr().cast::<ThreadState>().read_unaligned() };
            gate::set_thread_state(context, &state);
            true
        }
        FLAVOR_FLOAT_STATE64 if bytes.len() >= FLOAT_BYTES => {
            let mut state = [0; gate::FLOAT_STATE_SIZE];
            state[..FLOAT_BYTES].copy_from_slice(&bytes[..FLOAT_BYTES]);
            gate::set_float_state(context, &state);
            true
        }
        // Exception states are read-only: setting one does nothing (thread_setstatus refuses it).
        header => match unified(header) {
            Some(inner) if bytes.len() > 8 && bytes[..4] == inner.to_le_bytes() => set(context, inner, &bytes[8..]),
            _ => false,
        },
    }
}
