//! Exception ports and exception messages.
//!
//! Sources: <mach/exception_types.h>; the request and reply layouts that MIG generates from
//! <mach/exc.defs> (2401–2403) and <mach/mach_exc.defs> (2405–2408 and 2410); XNU
//! osfmk/kern/exception.c (exception_triage: the thread's handler, then the task's, then the
//! host's, each only if the previous one refused; exception_deliver: each behavior's message) and
//! osfmk/kern/ipc_tt.c (set, get and swap).

use super::{
    KERN_INVALID_ARGUMENT, KERN_INVALID_TASK, KERN_SUCCESS, Mach,
    messages::Message,
    ports::{ARRIVALS, COPY_SEND, Kind, PortId, Reply, Right},
    states,
};
use crate::host::{
    gate::LinuxContext,
    kernel::{ending::refuse, futex, lock, thread::Thread},
    libsystem::conditions,
};
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) const EXC_BAD_ACCESS: i32 = 1;
pub(crate) const EXC_BAD_INSTRUCTION: i32 = 2;
pub(crate) const EXC_ARITHMETIC: i32 = 3;
pub(crate) const EXC_EMULATION: i32 = 4;
pub(crate) const EXC_SOFTWARE: i32 = 5;
pub(crate) const EXC_BREAKPOINT: i32 = 6;
pub(crate) const EXC_GUARD: i32 = 12;
/// EXC_TYPES_COUNT, including the invalid exception 0.
const TYPES: usize = 14;
/// EXC_MASK_ALL and, beyond it, EXC_MASK_CRASH and EXC_MASK_CORPSE_NOTIFY.
const VALID_MASK: u32 = 0x3ffe;
const MASK_CRASH: u32 = (1 << 10) | (1 << 13);

const DEFAULT: u32 = 1;
const STATE: u32 = 2;
const STATE_IDENTITY: u32 = 3;
const IDENTITY_PROTECTED: u32 = 4;
const STATE_IDENTITY_PROTECTED: u32 = 5;
/// MACH_EXCEPTION_CODES and MACH_EXCEPTION_ERRORS.
const CODES_64: u32 = 0x8000_0000;
const FLAGS: u32 = 0xe000_0000;

/// A handler: the port, the behavior with its flags, the flavor of states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ExceptionAction {
    /// The port's id plus one: a record of zeros has no handlers.
    port: usize,
    behavior: u32,
    flavor: i32,
}

/// The handlers of a thread or of the task, by exception.
#[derive(Debug, Default)]
pub(crate) struct ExceptionActions([ExceptionAction; TYPES]);

static RAISED: AtomicU64 = AtomicU64::new(0);

/// Returns the number of exceptions raised.
pub(crate) extern "C" fn raised() -> u64 {
    RAISED.load(Ordering::SeqCst)
}

/// Passes an exception to the thread's handler, then to the task's; returns whether one handled it.
///
/// The thread waits for replies.
pub(crate) fn raise(thread: &Thread, exception: i32, codes: [i64; 2], context: &mut LinuxContext) -> bool {
    RAISED.fetch_add(1, Ordering::SeqCst);
    for of_thread in [true, false] {
        let action = {
            let mach = lock();
            let actions = if of_thread { &thread.exception_actions } else { &mach.exception_actions };
            actions.0[exception as usize]
        };
        if action.port != 0 && deliver(thread, action, exception, codes, context) {
            return true;
        }
    }
    false
}

fn deliver(
    thread: &Thread,
    action: ExceptionAction,
    exception: i32,
    codes: [i64; 2],
    context: &mut LinuxContext,
) -> bool {
    let to = action.port - 1;
    let behavior = action.behavior & !FLAGS;
    let wide = action.behavior & CODES_64 != 0;
    let with_state = matches!(behavior, STATE | STATE_IDENTITY | STATE_IDENTITY_PROTECTED);
    let mut body = Vec::new();
    // NDR_record: little-endian, ASCII, IEEE (<mach/ndr.h>).
    body.extend_from_slice(&[0, 0, 0, 0, 1, 0, 0, 0]);
    if matches!(behavior, IDENTITY_PROTECTED | STATE_IDENTITY_PROTECTED) {
        body.extend_from_slice(&thread.unique_id.load(Ordering::SeqCst).to_le_bytes());
    }
    body.extend_from_slice(&exception.to_le_bytes());
    body.extend_from_slice(&2u32.to_le_bytes());
    for code in codes {
        if wide {
            body.extend_from_slice(&code.to_le_bytes());
        } else {
            body.extend_from_slice(&(code as i32).to_le_bytes()); // CAST_DOWN
        }
    }
    if with_state {
        let Some(state) = states::get(thread, context, action.flavor) else {
            refuse!("an exception handler with thread state {}", states::name(action.flavor));
        };
        body.extend_from_slice(&action.flavor.to_le_bytes());
        body.extend_from_slice(&((state.len() / 4) as u32).to_le_bytes());
        body.extend_from_slice(&state);
    }
    // exception_raise 2401 and following; mach_exception_raise 2405, …_state, …_state_identity,
    // …_identity_protected; then …_backtrace, which is not a behavior, and
    // …_state_identity_protected.
    let id = match behavior {
        STATE_IDENTITY_PROTECTED => 2410,
        _ => 2400 + behavior as i32 + if wide { 4 } else { 0 },
    };
    let reply_port = {
        let mut mach = lock();
        if !mach.ports.alive(to) {
            return false;
        }
        let reply = mach.ports.reply_port();
        let ports: Vec<PortId> = match behavior {
            STATE => Vec::new(),
            IDENTITY_PROTECTED | STATE_IDENTITY_PROTECTED => vec![mach.ports.kernel_port(Kind::TaskToken)],
            // Developer mode is off: provide read ports.
            _ if conditions::is_later() => {
                vec![mach.read_port(std::ptr::from_ref(thread).cast_mut()), mach.read_port(std::ptr::null_mut())]
            }
            _ => {
                let names = [thread.port.load(Ordering::SeqCst), mach.task];
                names.into_iter().filter_map(|n| mach.ports.id(n)).collect()
            }
        };
        let ports: Vec<(PortId, Right)> = ports.into_iter().map(|port| (port, Right::Send)).collect();
        mach.ports.enqueue(to, Message::from_kernel(to, reply, id, &ports, &body));
        reply
    };
    let reply = loop {
        let seen = ARRIVALS.load(Ordering::SeqCst);
        // Taken before the match: the lock must not be held while waiting.
        let reply = lock().ports.take_reply(reply_port);
        match reply {
            Reply::Came(reply) => break reply,
            // The handler dropped the reply right, or its port died with the message: the exception
            // was not handled.
            Reply::Discarded => return false,
            Reply::Awaited => {}
        }
        futex::wait(&ARRIVALS, seen, None);
    };
    accept(&reply, id, with_state.then_some(action.flavor), context)
}

/// Checks a reply as MIG's client stub does, and applies its state.
///
/// Returns whether it reports success.
fn accept(reply: &[u8], id: i32, flavor: Option<i32>, context: &mut LinuxContext) -> bool {
    let word = |at: usize| reply.get(at..at + 4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    // Header, NDR, return code; then flavor, count and state.
    if word(20) != Some(id + 100) || word(0).is_none_or(|bits| bits < 0) || word(32) != Some(KERN_SUCCESS) {
        return false;
    }
    let Some(flavor) = flavor else { return reply.len() == 36 };
    let (Some(new_flavor), Some(count)) = (word(36), word(40)) else { return false };
    let Some(state) = reply.get(44..44 + count as usize * 4) else { return false };
    new_flavor == flavor && states::set(context, flavor, state)
}

/// Checks the arguments of set and swap (ipc_tt.c, task_set_exception_ports).
fn check(mask: u32, behavior: u32, port: u32, flavor: i32) -> Result<(), i32> {
    if mask & !VALID_MASK != 0 {
        return Err(KERN_INVALID_ARGUMENT);
    }
    if mask & MASK_CRASH != 0 && port != 0 {
        refuse!("an exception port for EXC_CRASH or EXC_CORPSE_NOTIFY: in its own process it would wait for itself");
    }
    if port != 0 {
        let kind = behavior & !FLAGS;
        if conditions::is_enforced() && matches!(kind, DEFAULT | STATE_IDENTITY) {
            refuse!(
                "an exception port of behaviour {kind}, which a protected process may not have: EXC_GUARD would end it"
            );
        }
        match kind {
            DEFAULT => {}
            IDENTITY_PROTECTED if conditions::is_later() && behavior & CODES_64 != 0 => {}
            STATE_IDENTITY_PROTECTED if !conditions::is_later() || behavior & CODES_64 == 0 => {
                return Err(KERN_INVALID_ARGUMENT);
            }
            STATE | STATE_IDENTITY | STATE_IDENTITY_PROTECTED if states::known(flavor) => {}
            STATE | STATE_IDENTITY | STATE_IDENTITY_PROTECTED => {
                refuse!("an exception port with flavor {}", states::name(flavor));
            }
            _ => return Err(KERN_INVALID_ARGUMENT),
        }
    }
    Ok(())
}

/// The arrays in which set functions return the previous handlers.
///
/// Masks with the same handler share an entry.
#[derive(Clone, Copy)]
struct Previous {
    masks: *mut u32,
    count: *mut u32,
    ports: *mut u32,
    behaviors: *mut u32,
    flavors: *mut i32,
}

/// Returns the actions of the task or a thread.
fn actions(mach: &mut Mach, target: u32) -> Option<&mut ExceptionActions> {
    if mach.is_task(target) {
        return Some(&mut mach.exception_actions);
    }
    let super::ports::Kind::Thread(thread) = mach.ports.kind(target)? else { return None };
    // SAFETY: records are never unmapped; the lock is held.
    Some(unsafe { &mut (**thread).exception_actions })
}

fn get(target: u32, mask: u32, previous: Previous) -> i32 {
    // SAFETY: the program gave the address; a caller's room is EXC_TYPES_COUNT where it gives none
    // (task_get…: in/out).
    let room = unsafe { previous.count.read() }.clamp(0, TYPES as u32) as usize;
    let mut found: Vec<(u32, ExceptionAction, u32)> = Vec::new();
    {
        let mut mach = lock();
        let Some(actions) = actions(&mut mach, target) else { return KERN_INVALID_TASK };
        for (exception, &action) in actions.0.iter().enumerate().skip(1) {
            if mask & (1 << exception) == 0 {
                continue;
            }
            if let Some((masks, ..)) = found.iter_mut().find(|(_, other, _)| *other == action) {
                *masks |= 1 << exception;
            } else if found.len() < room {
                found.push((1 << exception, action, 0));
            }
        }
        for (_, action, name) in &mut found {
            if action.port != 0 && mach.ports.alive(action.port - 1) {
                *name = mach.ports.copy_out(action.port - 1, Right::Send);
            }
        }
    }
    for (index, (masks, action, name)) in found.iter().enumerate() {
        // SAFETY: the arrays have room for the count that the program gave.
        unsafe {
            previous.masks.add(index).write(*masks);
            previous.ports.add(index).write(*name);
            previous.behaviors.add(index).write(action.behavior);
            previous.flavors.add(index).write(action.flavor);
        }
    }
    // SAFETY: as above.
    unsafe { previous.count.write(found.len() as u32) };
    KERN_SUCCESS
}

fn set(target: u32, mask: u32, port: u32, behavior: u32, flavor: i32) -> i32 {
    if let Err(error) = check(mask, behavior, port, flavor) {
        return error;
    }
    let mut mach = lock();
    let port = match port {
        0 | u32::MAX => 0,
        name => match mach.ports.copy_in(name, COPY_SEND) {
            Ok((port, _)) => port + 1,
            Err(_) => return super::KERN_INVALID_RIGHT,
        },
    };
    let Some(actions) = actions(&mut mach, target) else { return KERN_INVALID_TASK };
    for (exception, action) in actions.0.iter_mut().enumerate().skip(1) {
        if mask & (1 << exception) != 0 {
            *action = ExceptionAction { port, behavior, flavor };
        }
    }
    KERN_SUCCESS
}

extern "C" fn set_exception_ports(target: u32, mask: u32, port: u32, behavior: u32, flavor: i32) -> i32 {
    set(target, mask, port, behavior, flavor)
}

extern "C" fn get_exception_ports(
    target: u32,
    mask: u32,
    masks: *mut u32,
    count: *mut u32,
    ports: *mut u32,
    behaviors: *mut u32,
    flavors: *mut i32,
) -> i32 {
    get(target, mask, Previous { masks, count, ports, behaviors, flavors })
}

extern "C" fn swap_exception_ports(
    target: u32,
    mask: u32,
    port: u32,
    behavior: u32,
    flavor: i32,
    masks: *mut u32,
    count: *mut u32,
    ports: *mut u32,
    behaviors: *mut u32,
    flavors: *mut i32,
) -> i32 {
    if let Err(error) = check(mask, behavior, port, flavor) {
        return error;
    }
    let result = get(target, mask, Previous { masks, count, ports, behaviors, flavors });
    if result == KERN_SUCCESS { set(target, mask, port, behavior, flavor) } else { result }
}

crate::host::libsystem::exports! {
    "task_set_exception_ports" => set_exception_ports,
    "task_get_exception_ports" => get_exception_ports,
    "task_swap_exception_ports" => swap_exception_ports,
    "thread_set_exception_ports" => set_exception_ports,
    "thread_get_exception_ports" => get_exception_ports,
    "thread_swap_exception_ports" => swap_exception_ports,
}
