//! Darwin: the receiver of the task's memory exceptions recovers guarded loads.

use coroner_process::exception_ports::port_of;
use mach2::port::mach_port_t;

/// The exception port of a thread that recovers guarded loads.
pub type Owner = mach_port_t;

/// Returns `true` if the task's memory exceptions go to that port.
pub(crate) fn receives_faults(owner: Owner) -> bool {
    /// `EXC_BAD_ACCESS`.
    const BAD_ACCESS: usize = 1;
    port_of(BAD_ACCESS) == owner
}

/// Returns `false`: no thread blocks exceptions.
pub(crate) fn blocks_faults() -> bool {
    false
}
