//! The arguments of a Darwin signal handler.
//!
//! `siginfo_t` (<sys/signal.h>), `ucontext64_t` (<sys/_types/_ucontext64.h>) and `mcontext64_t`
//! (<i386/_mcontext.h>, <arm/_mcontext.h>).

use crate::host::gate::{self, ExceptionState, SavedContext, ThreadState};

/// `siginfo_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SignalInfo {
    pub(crate) signo: i32,
    pub(crate) errno: i32,
    pub(crate) code: i32,
    pub(crate) pid: i32,
    pub(crate) uid: u32,
    pub(crate) status: i32,
    pub(crate) address: usize,
    pub(crate) value: usize,
    pub(crate) band: i64,
    pub(crate) reserved: [u64; 7],
}

/// `struct __darwin_mcontext64`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct MachineContext {
    pub(crate) exception: ExceptionState,
    pub(crate) thread: ThreadState,
    pub(crate) floats: [u8; gate::FLOAT_STATE_SIZE],
    padding: [u8; gate::MCONTEXT_SIZE - 16 - size_of::<ThreadState>() - gate::FLOAT_STATE_SIZE],
}

const _: () = assert!(size_of::<MachineContext>() == gate::MCONTEXT_SIZE);
const _: () = assert!(size_of::<SignalInfo>() == 104);
const _: () = assert!(size_of::<UserContext>() == 56);

impl MachineContext {
    pub(crate) const fn new(
        exception: ExceptionState,
        thread: &ThreadState,
        floats: &[u8; gate::FLOAT_STATE_SIZE],
    ) -> Self {
        Self { exception, thread: *thread, floats: *floats, padding: [0; _] }
    }
}

/// `struct __darwin_ucontext64`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct UserContext {
    pub(crate) on_stack: i32,
    pub(crate) mask: u32,
    pub(crate) stack_base: usize,
    pub(crate) stack_size: usize,
    pub(crate) stack_flags: i32,
    pub(crate) stack_padding: i32,
    pub(crate) link: usize,
    pub(crate) machine_size: usize,
    pub(crate) machine: usize,
}

/// The data on the program's stack while its handler runs.
///
/// `_sigtramp`'s frame register points to it.
#[repr(C, align(64))]
pub(crate) struct SignalFrame {
    /// Must be first: the call frame information of `_sigtramp` finds the registers here.
    pub(crate) machine: MachineContext,
    pub(crate) context: UserContext,
    pub(crate) info: SignalInfo,
    /// Whether the thread was in host code.
    ///
    /// Then the whole saved state is restored, without the program's changes.
    pub(crate) in_host: bool,
    pub(crate) saved: SavedContext,
}
