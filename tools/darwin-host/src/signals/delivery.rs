//! Actions, masks, and passing a signal to the program's handler and back.
//!
//! Sources: <sys/signal.h>; XNU bsd/kern/kern_sig.c (sigaction, threadsignal),
//! bsd/dev/{i386,arm}/unix_signal.c (sendsig: red zone of 128 bytes, alternate stack, a frame that
//! can't be written kills by SIGILL; sigreturn).

use std::{
    ptr,
    sync::atomic::{AtomicU32, AtomicUsize, Ordering},
};

use super::{
    layout::{MachineContext, SignalFrame, SignalInfo, UserContext},
    numbers::{self, SIGILL},
    standing,
};
use crate::host::{
    gate::{self, LinuxContext, Place, SavedContext, ThreadState},
    kernel::{ending, lock, pages, thread::Thread},
    loader::synthetic,
};

/// A Darwin `struct sigaction`: handler (0 default, 1 ignore), mask, flags.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Action {
    pub(crate) handler: usize,
    pub(crate) mask: u32,
    pub(crate) flags: u32,
}

impl Action {
    pub(crate) const ON_STACK: u32 = 0x1;
    pub(crate) const RESTART: u32 = 0x2;
    const RESET_HAND: u32 = 0x4;
    const NO_CHILD_STOP: u32 = 0x8;
    const NO_DEFER: u32 = 0x10;
    const NO_CHILD_WAIT: u32 = 0x20;
    pub(crate) const KNOWN: u32 = 0x7f | 0x200 | 0x100;
}

/// The program's actions, by signal: handler, mask, flags.
static ACTIONS: [(AtomicUsize, AtomicU32, AtomicU32); 32] =
    [const { (AtomicUsize::new(0), AtomicU32::new(0), AtomicU32::new(0)) }; 32];

/// Returns the program's action for a Darwin signal.
pub(crate) fn action(number: i32) -> Action {
    let (handler, mask, flags) = &ACTIONS[number as usize & 31];
    Action {
        handler: handler.load(Ordering::SeqCst),
        mask: mask.load(Ordering::SeqCst),
        flags: flags.load(Ordering::SeqCst),
    }
}

/// Sets the program's action, and Linux's to match.
pub(crate) fn set_action(number: i32, action: Action) {
    let (handler, mask, flags) = &ACTIONS[number as usize & 31];
    handler.store(action.handler, Ordering::SeqCst);
    mask.store(action.mask, Ordering::SeqCst);
    flags.store(action.flags, Ordering::SeqCst);
    let Some(linux) = numbers::to_linux(number) else { return };
    if super::FAULTS.contains(&linux) {
        return; // the host's handler stays and asks for the action when it needs it
    }
    match action.handler {
        // SAFETY: a plain action.
        0 | 1 => unsafe {
            libc::signal(linux, if action.handler == 0 { libc::SIG_DFL } else { libc::SIG_IGN });
        },
        _ => {
            let mut flags = 0;
            for (darwin, same) in [
                (Action::RESTART, libc::SA_RESTART),
                (Action::NO_CHILD_STOP, libc::SA_NOCLDSTOP),
                (Action::NO_CHILD_WAIT, libc::SA_NOCLDWAIT),
            ] {
                if action.flags & darwin != 0 {
                    flags |= same;
                }
            }
            super::handle(linux, flags);
        }
    }
}

/// Signals that can't be blocked (<sys/signal.h>: KILL and STOP).
const UNBLOCKABLE: u32 = numbers::bit(numbers::SIGKILL) | numbers::bit(numbers::SIGSTOP);

/// Converts a Darwin mask to Linux's: the faults and the host's own signal stay unblocked.
fn linux_mask(set: u32) -> u64 {
    super::FAULTS.iter().chain([&super::STAND]).fold(numbers::set_to_linux(set), |mask, n| mask & !(1 << (n - 1)))
}

/// Updates an interrupted thread's Linux mask to the program's mask.
///
/// Another thread may have changed the program's mask.
pub(super) fn follow_mask(thread: &Thread, context: &mut LinuxContext) {
    *gate::mask_mut(context) = linux_mask(thread.blocked.load(Ordering::SeqCst));
}

/// Changes the masks of all threads, including the caller's, as `sigprocmask` does.
///
/// Source: XNU bsd/kern/kern_sig.c, block_procsigmask, unblock_procsigmask, set_procsigmask.
pub(crate) fn change_all_masks(caller: &Thread, change: impl Fn(u32) -> u32) {
    let others: Vec<*mut Thread> = {
        let mach = lock();
        let others = mach.threads.iter().copied().filter(|&thread| !ptr::eq(thread, caller));
        others
            .inspect(|&thread| {
                // SAFETY: records are never unmapped.
                let blocked = unsafe { &(*thread).blocked };
                blocked.store(change(blocked.load(Ordering::SeqCst)) & !UNBLOCKABLE, Ordering::SeqCst);
            })
            .collect()
    };
    for thread in others {
        // SAFETY: as above.
        standing::interrupt(unsafe { &*thread });
    }
    set_mask(caller, change(caller.blocked.load(Ordering::SeqCst)));
}

/// Sets the calling thread's mask to `set`, and delivers fault signals that were blocked.
pub(crate) fn set_mask(thread: &Thread, set: u32) {
    let set = set & !UNBLOCKABLE;
    thread.blocked.store(set, Ordering::SeqCst);
    let mask = linux_mask(set);
    // SAFETY: eight bytes are read.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const mask,
            std::ptr::null_mut::<u64>(),
            8usize,
        );
    }
    let ready = thread.pending.load(Ordering::SeqCst) & !set;
    for number in (1..32).filter(|&n| ready & numbers::bit(n) != 0) {
        thread.pending.fetch_and(!numbers::bit(number), Ordering::SeqCst);
        if let Some(linux) = numbers::to_linux(number) {
            // SAFETY: sends a signal to the calling thread.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::syscall(libc::SYS_gettid), linux) };
        }
    }
}

/// Ends the process by a Darwin signal, as its default action does.
pub(crate) fn die(number: i32) -> ! {
    ending::die_by(numbers::to_linux(number).unwrap_or(libc::SIGKILL))
}

/// Handles the arrival of a sent signal (not a fault).
pub(super) fn arrived(thread: &mut Thread, linux: i32, info: &libc::siginfo_t, context: &mut LinuxContext) {
    let Some(number) = numbers::from_linux(linux) else {
        ending::refuse!("Linux signal {linux}, which Darwin doesn't have");
    };
    if thread.blocked.load(Ordering::SeqCst) & numbers::bit(number) != 0 {
        thread.pending.fetch_or(numbers::bit(number), Ordering::SeqCst);
        return;
    }
    match action(number).handler {
        0 => die(number),
        1 => {}
        _ => {
            // SAFETY: every sent signal has pid and uid in the same place, and SIGCHLD its status.
            let (pid, uid, status) = unsafe { (info.si_pid(), info.si_uid(), info.si_status()) };
            let child = linux == libc::SIGCHLD;
            let info = SignalInfo {
                signo: number,
                code: if child { info.si_code } else { 0x10001 }, // SI_USER
                pid,
                uid,
                status: if child { status } else { 0 },
                ..SignalInfo::default()
            };
            deliver(thread, number, info, context);
        }
    }
}

/// Makes the interrupted thread continue in its handler for `number`.
pub(super) fn deliver(thread: &mut Thread, number: i32, info: SignalInfo, context: &mut LinuxContext) {
    let action = action(number);
    let in_host = !matches!(gate::place(thread, gate::pc(context)), Place::Program);
    let state = gate::thread_state(thread, context);
    let (signal, address) = thread.last_fault;
    let machine =
        MachineContext::new(gate::exception_state(context, signal, address), &state, &gate::float_state(context));

    let (base, size, flags) = thread.alternate;
    let enabled = flags & 4 == 0 && size > 0;
    let here = gate::sp(context);
    let on_alternate = enabled && (base..=base + size).contains(&here);
    let to_alternate = action.flags & Action::ON_STACK != 0 && enabled && !on_alternate;
    let top = if to_alternate { base + size } else { here - 128 };
    let place = (top - size_of::<SignalFrame>()) & !63;
    // An alternate stack may be smaller than the host's state: MINSIGSTKSZ is 32 KiB, and the frame
    // half of it.
    let lowest = if to_alternate { base } else { 0 };
    if place < lowest || !(place..top).step_by(4096).chain([top - 8]).all(writable) {
        die(SIGILL);
    }
    let frame = place as *mut SignalFrame;
    let user = UserContext {
        on_stack: i32::from(on_alternate),
        mask: thread.blocked.load(Ordering::SeqCst),
        stack_base: if on_alternate { base } else { 0 },
        stack_size: if on_alternate { size } else { 0 },
        stack_flags: if on_alternate { 1 } else { 4 },
        stack_padding: 0,
        link: 0,
        machine_size: gate::MCONTEXT_SIZE,
        // SAFETY: only addresses are taken; the frame was found to be writable.
        machine: unsafe { &raw const (*frame).machine } as usize,
    };
    // SAFETY: the frame was found to be writable, and is below the used part of the stack.
    let arguments = unsafe {
        (&raw mut (*frame).machine).write(machine);
        (&raw mut (*frame).context).write(user);
        (&raw mut (*frame).info).write(info);
        (&raw mut (*frame).in_host).write(in_host);
        SavedContext::save(&raw mut (*frame).saved, context);
        [number as usize, &raw const (*frame).info as usize, &raw const (*frame).context as usize]
    };
    let start = ThreadState::for_handler(action.handler, arguments, place, place - 64, synthetic::trampoline());
    gate::set_thread_state(context, &start);

    let mut blocked = thread.blocked.load(Ordering::SeqCst) | action.mask;
    if action.flags & Action::NO_DEFER == 0 {
        blocked |= numbers::bit(number);
    }
    thread.blocked.store(blocked & !UNBLOCKABLE, Ordering::SeqCst);
    *gate::mask_mut(context) = linux_mask(blocked & !UNBLOCKABLE);
    thread.handled.fetch_add(1, Ordering::SeqCst);
    if action.flags & Action::RESET_HAND != 0 {
        set_action(number, Action { handler: 0, mask: 0, flags: 0 });
    }
}

fn writable(address: usize) -> bool {
    pages::read_value::<u8>(address).is_some_and(|byte| pages::copy_out(&[byte], address))
}

/// Continues the interrupted thread after its handler returned to `_sigtramp`, which trapped.
///
/// The handler's changes apply.
pub(super) fn finish(thread: &mut Thread, context: &mut LinuxContext) {
    let frame = gate::frame_of_trampoline(context) as *const SignalFrame;
    // SAFETY: `_sigtramp` keeps the frame's address in a callee-saved register. The program may
    // corrupt the frame.
    unsafe {
        let machine = (&raw const (*frame).machine).read();
        let mask = (*frame).context.mask & !UNBLOCKABLE;
        SavedContext::restore(&raw const (*frame).saved, context);
        if !(*frame).in_host {
            gate::set_thread_state(context, &machine.thread);
            gate::set_float_state(context, &machine.floats);
        }
        thread.blocked.store(mask, Ordering::SeqCst);
        *gate::mask_mut(context) = linux_mask(mask);
    }
    // Fault signals that were blocked while the handler ran are delivered when they are unblocked.
    let ready = thread.pending.load(Ordering::SeqCst) & !thread.blocked.load(Ordering::SeqCst);
    if ready != 0 && !lock::is_mine() {
        let number = ready.trailing_zeros() as i32 + 1;
        thread.pending.fetch_and(!numbers::bit(number), Ordering::SeqCst);
        match action(number).handler {
            0 => die(number),
            1 => {}
            _ => deliver(thread, number, SignalInfo { signo: number, code: 0x10001, ..Default::default() }, context),
        }
    }
}
