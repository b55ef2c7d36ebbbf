//! Apple's equivalents of futex(2): `__ulock_wait`, and libpthread's own `__psynch_*`.
//!
//! While a thread waits in one of these calls, its registers are those with which it made the call:
//! XNU copies the arguments out of them (`unix_syscall64` in bsd/dev/i386/systemcalls.c;
//! `arm_get_u64_syscall_args` in bsd/dev/arm/systemcalls.c) and writes them when the call returns.
//! The program counter is after the instruction that made the call. Numbers and arguments:
//! bsd/kern/syscalls.master; operations: bsd/sys/ulock.h.

use super::{CallRegisters, FutexWait};
use crate::memory::Memory;
use crate::registers::{Aarch64Registers, X86_64Registers};

/// `psynch_mutexwait(mutex, mgen, ugen, tid, flags)`.
pub const MUTEX_WAIT: i64 = 301;
/// `psynch_cvwait(cv, cvlsgen, cvugen, mutex, mugen, flags, sec, nsec)`.
pub const CONDITION_WAIT: i64 = 305;
/// `psynch_rw_rdlock(rwlock, lgenval, ugenval, rw_wc, flags)`.
pub const READ_LOCK: i64 = 306;
/// `psynch_rw_wrlock`, with the same arguments.
pub const WRITE_LOCK: i64 = 307;
/// `ulock_wait(operation, addr, value, timeout)`, with the timeout in microseconds.
pub const ULOCK_WAIT: i64 = 515;
/// `ulock_wait2(operation, addr, value, timeout, value2)`, in nanoseconds or as a point in time.
pub const ULOCK_WAIT_2: i64 = 544;

/// Spans kept around a ulock's word.
///
/// The word may belong to a mutex (24 bytes from its beginning) or to a condition variable (24 or
/// 28).
const ULOCK: [(usize, usize); 4] = [(28, 36), (24, 36), (0, 36), (0, 4)];
/// Spans kept of a libpthread object.
///
/// A mutex has 64 bytes, a condition variable 48, a read-write lock more.
const PSYNCH: [(usize, usize); 2] = [(0, 64), (0, 48)];

/// The registers of an Apple thread in a BSD system call.
pub trait DarwinCall: CallRegisters {
    /// Returns the call's number, if the registers are those of a call.
    fn number<M: Memory>(&self, memory: &mut M) -> Option<i64>;

    /// Returns the seventh and the eighth argument.
    fn further_arguments<M: Memory>(&self, memory: &mut M) -> Option<(u64, u64)>;
}

impl DarwinCall for X86_64Registers {
    fn number<M: Memory>(&self, memory: &mut M) -> Option<i64> {
        /// `syscall`.
        const CALL: [u8; 2] = [0x0f, 0x05];
        /// `SYSCALL_CLASS_UNIX`, above the number (osfmk/mach/i386/syscall_sw.h).
        const CLASS: u64 = 2;
        let [rax, ..] = self.gpr;
        let mut before = [0; CALL.len()];
        let is_call = rax >> 24 == CLASS && memory.read(self.pc.wrapping_sub(2), &mut before).is_ok() && before == CALL;
        is_call.then_some((rax & 0xff_ffff) as i64)
    }

    fn further_arguments<M: Memory>(&self, memory: &mut M) -> Option<(u64, u64)> {
        memory.read_pair(self.sp().wrapping_add(8)).ok()
    }
}

impl DarwinCall for Aarch64Registers {
    fn number<M: Memory>(&self, memory: &mut M) -> Option<i64> {
        /// `svc #0x80`.
        const CALL: [u8; 4] = 0xd400_1001_u32.to_le_bytes();
        let number = *self.x.get(16)?;
        let mut before = [0; CALL.len()];
        let is_call = memory.read(self.pc.wrapping_sub(4), &mut before).is_ok() && before == CALL;
        // Negative numbers are Mach calls.
        i64::try_from(number).ok().filter(|_| is_call)
    }

    fn further_arguments<M: Memory>(&self, _memory: &mut M) -> Option<(u64, u64)> {
        let [_, _, _, _, _, _, seventh, eighth, ..] = self.x;
        Some((seventh, eighth))
    }
}

/// Returns what a thread with these registers waits for, and the call's number.
///
/// `None` if the thread is in none of these calls, or if the memory can't be read.
///
/// Async-signal-safe if reading `memory` is.
pub fn wait_of<R: DarwinCall, M: Memory>(registers: &R, memory: &mut M) -> Option<(i64, FutexWait)> {
    let number = registers.number(memory)?;
    let [first, second, third, fourth, fifth, sixth] = registers.arguments();
    let (wait, spans): (_, &[_]) = match number {
        // The first argument is the operation, which is not an address.
        ULOCK_WAIT | ULOCK_WAIT_2 if second % 4 == 0 => {
            let timeout = if number == ULOCK_WAIT { u64::from(fourth as u32) } else { fourth };
            (FutexWait::new(second, first as u32, third as u32, timeout != 0), &ULOCK)
        }
        MUTEX_WAIT | READ_LOCK | WRITE_LOCK => (FutexWait::new(first, fifth as u32, second as u32, false), &PSYNCH),
        CONDITION_WAIT => {
            let (seconds, nanoseconds) = registers.further_arguments(memory)?;
            let timed = seconds != 0 || nanoseconds as u32 != 0;
            (FutexWait::new(first, sixth as u32, second as u32, timed), &PSYNCH)
        }
        _ => return None,
    };
    Some((number, wait.with_memory(spans, memory)?))
}
