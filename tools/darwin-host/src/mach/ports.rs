//! Ports, the task's rights to them, and the names of those rights.
//!
//! Rules: <mach/port.h>; XNU osfmk/ipc/ipc_right.c and ipc_object.c. A task has one name for the
//! receive right and all send rights to a port; each send-once right has its own name; rights to a
//! dead port become dead names.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::atomic::AtomicU32,
};

use super::{
    KERN_INVALID_ARGUMENT, KERN_INVALID_NAME, KERN_INVALID_RIGHT, KERN_INVALID_VALUE, KERN_RIGHT_EXISTS, KERN_SUCCESS,
    messages::Message,
};
use crate::host::kernel::{ending::refuse, futex, lock, thread::Thread};

/// A port's id, which is never reused.
pub(crate) type PortId = usize;

/// The receiver of a port.
#[derive(Debug)]
pub(crate) enum Kind {
    /// The program, through messages.
    Messages,
    Task,
    Host,
    Thread(*mut Thread),
    /// A read port, which can't change its object: the task's, a thread's.
    TaskRead,
    ThreadRead(*mut Thread),
    /// A task's identity, for processes that may not have its port.
    TaskToken,
    Semaphore(i32),
    /// The kernel, which waits for the reply to an exception.
    Reply(Reply),
}

/// The state of an exception's reply right.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// No reply yet.
    Awaited,
    /// The right was dropped.
    Discarded,
    /// The reply's bytes.
    Came(Vec<u8>),
}

#[derive(Debug)]
struct Port {
    kind: Kind,
    alive: bool,
    queue: VecDeque<Message>,
    sequence: u32,
    limit: u32,
    context: u64,
    /// Whether the receive right is guarded with `context`.
    guarded: bool,
}

/// The meaning of a name.
#[derive(Debug)]
struct Name {
    port: PortId,
    receive: bool,
    send: u32,
    send_once: u32,
}

/// A right in a message, or one described by a disposition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    Receive,
    Send,
    SendOnce,
}

/// Dispositions (<mach/message.h>, MACH_MSG_TYPE_*).
pub(crate) const MOVE_RECEIVE: u32 = 16;
pub(crate) const MOVE_SEND: u32 = 17;
pub(crate) const MOVE_SEND_ONCE: u32 = 18;
pub(crate) const COPY_SEND: u32 = 19;
pub(crate) const MAKE_SEND: u32 = 20;
pub(crate) const MAKE_SEND_ONCE: u32 = 21;

/// Changes when a message arrives or a port dies; receivers sleep on it.
pub(crate) static ARRIVALS: AtomicU32 = AtomicU32::new(0);

#[derive(Debug)]
pub(crate) struct Ports {
    all: Vec<Port>,
    names: BTreeMap<u32, Name>,
    next_name: u32,
}

impl Ports {
    pub(crate) fn new() -> Self {
        Self { all: Vec::new(), names: BTreeMap::new(), next_name: 1 }
    }

    fn create(&mut self, kind: Kind) -> PortId {
        let limit = 5; // MACH_PORT_QLIMIT_DEFAULT
        self.all.push(Port {
            kind,
            alive: true,
            queue: VecDeque::new(),
            sequence: 0,
            limit,
            context: 0,
            guarded: false,
        });
        self.all.len() - 1
    }

    /// Creates a name in XNU's form: an index above eight bits, of which the low two are set.
    fn fresh_name(&mut self) -> u32 {
        self.next_name += 1;
        (self.next_name << 8) | 0x03 | ((self.next_name % 3) << 2)
    }

    fn name_for(&mut self, port: PortId) -> u32 {
        if let Some((&name, _)) = self.names.iter().find(|(_, n)| n.port == port && n.send_once == 0) {
            return name;
        }
        let name = self.fresh_name();
        self.names.insert(name, Name { port, receive: false, send: 0, send_once: 0 });
        name
    }

    /// Creates a kernel port with one send right for the task; returns its name.
    pub(crate) fn kernel_object(&mut self, kind: Kind) -> u32 {
        let port = self.create(kind);
        self.copy_out(port, Right::Send)
    }

    /// Creates a kernel port without a right for the task.
    pub(crate) fn kernel_port(&mut self, kind: Kind) -> PortId {
        self.create(kind)
    }

    /// Returns the guard of a name's receive right, if it has one.
    fn guard(&self, name: u32) -> Option<u64> {
        let port = &self.all[self.receiver(name)?];
        port.guarded.then_some(port.context)
    }

    /// Creates a port on which the kernel waits for an exception's reply.
    pub(crate) fn reply_port(&mut self) -> PortId {
        self.create(Kind::Reply(Reply::Awaited))
    }

    /// Takes a reply port's state.
    pub(crate) fn take_reply(&mut self, port: PortId) -> Reply {
        match &mut self.all[port].kind {
            Kind::Reply(reply) => std::mem::replace(reply, Reply::Awaited),
            _ => Reply::Discarded,
        }
    }

    /// Returns the kind of the name's port, if it is alive.
    pub(crate) fn kind(&self, name: u32) -> Option<&Kind> {
        let port = &self.all[self.names.get(&name)?.port];
        port.alive.then_some(&port.kind)
    }

    pub(crate) fn kind_mut(&mut self, name: u32) -> Option<&mut Kind> {
        let port = &mut self.all[self.names.get(&name)?.port];
        port.alive.then_some(&mut port.kind)
    }

    /// Returns a name's port, alive or dead.
    pub(crate) fn id(&self, name: u32) -> Option<PortId> {
        self.names.get(&name).map(|n| n.port)
    }

    pub(crate) fn alive(&self, port: PortId) -> bool {
        self.all[port].alive
    }

    /// Whether the program, and not the kernel, receives on the port.
    pub(crate) fn is_messages(&self, port: PortId) -> bool {
        matches!(self.all[port].kind, Kind::Messages)
    }

    pub(crate) fn kernel_kind(&self, port: PortId) -> &Kind {
        &self.all[port].kind
    }

    /// Kills a port: queued messages are dropped, and rights to it become dead names.
    pub(crate) fn kill(&mut self, name: u32) {
        if let Some(port) = self.id(name) {
            self.kill_port(port);
        }
    }

    /// Releases one send right, or dead name, of a name.
    pub(crate) fn give_back(&mut self, name: u32) {
        if let Some(entry) = self.names.get_mut(&name) {
            entry.send = entry.send.saturating_sub(1);
        }
        self.forget_if_empty(name);
    }

    fn kill_port(&mut self, port: PortId) {
        self.all[port].alive = false;
        for message in std::mem::take(&mut self.all[port].queue) {
            self.discard(&message);
        }
        futex::advance(&ARRIVALS);
    }

    /// Drops a message with its rights.
    pub(crate) fn discard(&mut self, message: &Message) {
        for (port, right) in message.rights() {
            match right {
                Right::SendOnce => self.send_once_unused(port),
                Right::Receive => self.kill_port(port),
                Right::Send => {}
            }
        }
    }

    /// Notifies a port that its send-once right was destroyed unused.
    ///
    /// Source: MACH_NOTIFY_SEND_ONCE, <mach/notify.h>.
    fn send_once_unused(&mut self, port: PortId) {
        if let Kind::Reply(reply) = &mut self.all[port].kind {
            *reply = Reply::Discarded;
        } else if self.all[port].alive && self.is_messages(port) {
            self.all[port].queue.push_back(Message::notification(port, 0o107));
        }
        futex::advance(&ARRIVALS);
    }

    /// Gives the task a right to a port; returns the name.
    pub(crate) fn copy_out(&mut self, port: PortId, right: Right) -> u32 {
        if right == Right::SendOnce {
            let name = self.fresh_name();
            self.names.insert(name, Name { port, receive: false, send: 0, send_once: 1 });
            return name;
        }
        let name = self.name_for(port);
        if let Some(entry) = self.names.get_mut(&name) {
            match right {
                Right::Receive => entry.receive = true,
                _ => entry.send += 1,
            }
        }
        name
    }

    /// Takes one of the task's rights according to a disposition.
    ///
    /// # Errors
    /// KERN_INVALID_NAME, KERN_INVALID_RIGHT, or KERN_INVALID_VALUE for an unknown disposition.
    pub(crate) fn copy_in(&mut self, name: u32, disposition: u32) -> Result<(PortId, Right), i32> {
        let entry = self.names.get_mut(&name).ok_or(KERN_INVALID_NAME)?;
        let port = entry.port;
        let alive = self.all[port].alive;
        let right = match disposition {
            MAKE_SEND if entry.receive => Right::Send,
            MAKE_SEND_ONCE if entry.receive => Right::SendOnce,
            COPY_SEND if entry.send > 0 && alive => Right::Send,
            MOVE_SEND if entry.send > 0 && alive => {
                entry.send -= 1;
                Right::Send
            }
            MOVE_SEND_ONCE if entry.send_once > 0 => {
                entry.send_once = 0;
                Right::SendOnce
            }
            MOVE_RECEIVE if entry.receive => {
                entry.receive = false;
                Right::Receive
            }
            MOVE_RECEIVE..=MAKE_SEND_ONCE => return Err(KERN_INVALID_RIGHT),
            _ => return Err(KERN_INVALID_VALUE),
        };
        self.forget_if_empty(name);
        Ok((port, right))
    }

    fn forget_if_empty(&mut self, name: u32) {
        if self.names.get(&name).is_some_and(|n| !n.receive && n.send == 0 && n.send_once == 0) {
            self.names.remove(&name);
        }
    }

    /// Adds a message to a port's queue.
    pub(crate) fn enqueue(&mut self, port: PortId, message: Message) {
        match &mut self.all[port].kind {
            Kind::Reply(reply) => *reply = Reply::Came(message.into_bytes()),
            _ => self.all[port].queue.push_back(message),
        }
        futex::advance(&ARRIVALS);
    }

    /// Whether the queue has room for another message.
    pub(crate) fn has_room(&self, port: PortId) -> bool {
        (self.all[port].queue.len() as u32) < self.all[port].limit || !self.is_messages(port)
    }

    /// Returns a receive right's port.
    pub(crate) fn receiver(&self, name: u32) -> Option<PortId> {
        self.names.get(&name).filter(|n| n.receive).map(|n| n.port)
    }

    /// Returns the size of the next message, without its trailer.
    pub(crate) fn peek(&self, port: PortId) -> Option<usize> {
        self.all[port].queue.front().map(Message::size)
    }

    /// Takes the next message and its sequence number.
    pub(crate) fn dequeue(&mut self, port: PortId) -> Option<(Message, u32)> {
        let message = self.all[port].queue.pop_front()?;
        let sequence = self.all[port].sequence;
        self.all[port].sequence += 1;
        Some((message, sequence))
    }
}

/// MACH_PORT_RIGHT_* (<mach/port.h>).
const RIGHT_SEND: u32 = 0;
const RIGHT_RECEIVE: u32 = 1;
const RIGHT_SEND_ONCE: u32 = 2;
const RIGHT_DEAD_NAME: u32 = 4;

fn check_task(task: u32) {
    if !lock().is_task(task) {
        refuse!("a port operation on task {task:#x}, which is not this one");
    }
}

fn out<T>(place: *mut T, value: T) {
    // SAFETY: the program gave the address for a result.
    unsafe { place.write(value) };
}

extern "C" fn mach_port_allocate(task: u32, right: u32, name: *mut u32) -> i32 {
    check_task(task);
    if right != RIGHT_RECEIVE {
        refuse!("mach_port_allocate of right {right}: only receive rights");
    }
    let new = {
        let mut mach = lock();
        let port = mach.ports.create(Kind::Messages);
        mach.ports.copy_out(port, Right::Receive)
    };
    out(name, new);
    KERN_SUCCESS
}

extern "C" fn mach_port_insert_right(task: u32, name: u32, from: u32, disposition: u32) -> i32 {
    check_task(task);
    let mut mach = lock();
    let (port, right) = match mach.ports.copy_in(from, disposition) {
        Ok(taken) => taken,
        Err(error) => return error,
    };
    if right == Right::SendOnce || mach.ports.id(name) != Some(port) {
        drop(mach);
        if right == Right::SendOnce {
            refuse!("mach_port_insert_right of a send-once right");
        }
        return KERN_RIGHT_EXISTS; // the right would need the name that its port has already
    }
    mach.ports.copy_out(port, right);
    KERN_SUCCESS
}

/// Flavors of guard violations (<mach/port.h>, kGUARD_EXC_*).
const GUARD_DESTROY: i64 = 1;
const GUARD_MOD_REFS: i64 = 2;

/// Raises EXC_GUARD on the thread for an operation that a guard forbids.
///
/// Source: osfmk/ipc/mach_port.c, mach_port_guard_exception; <kern/exc_guard.h>: type
/// GUARD_TYPE_MACH_PORT 1, flavor, target; the subcode is the guard.
fn violates(name: u32, flavor: i64, guard: u64) -> i32 {
    let code = 1 << 61 | flavor << 32 | i64::from(name);
    let thread = crate::host::kernel::thread::current();
    crate::host::signals::faults::raise_here(thread, super::exceptions::EXC_GUARD, [code, guard as i64]);
    KERN_INVALID_RIGHT
}

extern "C" fn mach_port_guard(task: u32, name: u32, guard: u64, _strict: i32) -> i32 {
    check_task(task);
    let mut mach = lock();
    let Some(port) = mach.ports.receiver(name) else { return KERN_INVALID_RIGHT };
    let port = &mut mach.ports.all[port];
    if port.guarded {
        return KERN_INVALID_ARGUMENT;
    }
    (port.context, port.guarded) = (guard, true);
    KERN_SUCCESS
}

pub(crate) extern "C" fn mach_port_deallocate(task: u32, name: u32) -> i32 {
    check_task(task);
    let mut mach = lock();
    let ports = &mut mach.ports;
    let Some(entry) = ports.names.get_mut(&name) else { return KERN_INVALID_NAME };
    let port = entry.port;
    if entry.send > 0 {
        entry.send -= 1;
    } else if entry.send_once > 0 {
        entry.send_once = 0;
        ports.send_once_unused(port);
    } else {
        return KERN_INVALID_RIGHT;
    }
    ports.forget_if_empty(name);
    KERN_SUCCESS
}

extern "C" fn mach_port_destroy(task: u32, name: u32) -> i32 {
    check_task(task);
    let guard = lock().ports.guard(name);
    if let Some(guard) = guard {
        return violates(name, GUARD_DESTROY, guard);
    }
    let mut mach = lock();
    let Some(entry) = mach.ports.names.remove(&name) else { return KERN_INVALID_NAME };
    if entry.send_once > 0 {
        mach.ports.send_once_unused(entry.port);
    }
    if entry.receive {
        mach.ports.kill_port(entry.port);
    }
    KERN_SUCCESS
}

pub(crate) extern "C" fn mach_port_mod_refs(task: u32, name: u32, right: u32, delta: i32) -> i32 {
    check_task(task);
    let guard = lock().ports.guard(name);
    if let Some(guard) = guard.filter(|_| right == RIGHT_RECEIVE && delta != 0) {
        return violates(name, GUARD_MOD_REFS, guard);
    }
    let mut mach = lock();
    let ports = &mut mach.ports;
    let Some(entry) = ports.names.get_mut(&name) else { return KERN_INVALID_NAME };
    let port = entry.port;
    let alive = ports.all[port].alive;
    match right {
        RIGHT_RECEIVE if entry.receive => match delta {
            0 => {}
            -1 => {
                entry.receive = false;
                ports.kill_port(port);
            }
            _ => return KERN_INVALID_VALUE,
        },
        RIGHT_SEND | RIGHT_DEAD_NAME if entry.send > 0 && alive == (right == RIGHT_SEND) => {
            match entry.send.checked_add_signed(delta) {
                Some(count) => entry.send = count,
                None => return KERN_INVALID_VALUE,
            }
        }
        RIGHT_SEND_ONCE if entry.send_once > 0 => match delta {
            0 => {}
            -1 => {
                entry.send_once = 0;
                ports.send_once_unused(port);
            }
            _ => return KERN_INVALID_VALUE,
        },
        0..=4 => return KERN_INVALID_RIGHT,
        _ => return KERN_INVALID_VALUE,
    }
    ports.forget_if_empty(name);
    KERN_SUCCESS
}

extern "C" fn mach_port_get_refs(task: u32, name: u32, right: u32, refs: *mut u32) -> i32 {
    check_task(task);
    let count = {
        let mach = lock();
        let Some(entry) = mach.ports.names.get(&name) else { return KERN_INVALID_NAME };
        let alive = mach.ports.all[entry.port].alive;
        match right {
            RIGHT_SEND if alive => entry.send,
            RIGHT_RECEIVE => u32::from(entry.receive),
            RIGHT_SEND_ONCE if alive => entry.send_once,
            RIGHT_DEAD_NAME if !alive => entry.send + entry.send_once,
            0..=4 => 0,
            _ => return KERN_INVALID_VALUE,
        }
    };
    out(refs, count);
    KERN_SUCCESS
}

extern "C" fn mach_port_type(task: u32, name: u32, kind: *mut u32) -> i32 {
    check_task(task);
    let bits = {
        let mach = lock();
        let Some(entry) = mach.ports.names.get(&name) else { return KERN_INVALID_NAME };
        // MACH_PORT_TYPE(right) is 1 << (right + 16).
        let bit = |right: u32, held: bool| if held { 1u32 << (right + 16) } else { 0 };
        if mach.ports.all[entry.port].alive {
            bit(RIGHT_SEND, entry.send > 0)
                | bit(RIGHT_RECEIVE, entry.receive)
                | bit(RIGHT_SEND_ONCE, entry.send_once > 0)
        } else {
            bit(RIGHT_DEAD_NAME, true)
        }
    };
    out(kind, bits);
    KERN_SUCCESS
}

extern "C" fn mach_port_set_attributes(task: u32, name: u32, flavor: i32, info: *const u32, count: u32) -> i32 {
    check_task(task);
    // MACH_PORT_LIMITS_INFO: the queue's limit.
    if flavor != 1 || count != 1 {
        refuse!("mach_port_set_attributes of flavor {flavor}");
    }
    // SAFETY: one word, as `count` specifies.
    let limit = unsafe { info.read() };
    let mut mach = lock();
    match mach.ports.receiver(name) {
        Some(port) => mach.ports.all[port].limit = limit.min(1024),
        None => return KERN_INVALID_RIGHT,
    }
    KERN_SUCCESS
}

extern "C" fn mach_port_set_context(task: u32, name: u32, context: u64) -> i32 {
    check_task(task);
    let mut mach = lock();
    match mach.ports.receiver(name) {
        Some(port) => mach.ports.all[port].context = context,
        None => return KERN_INVALID_RIGHT,
    }
    KERN_SUCCESS
}

/// `mach_port_names`, by which a test counts the task's names. The caller deallocates both arrays.
extern "C" fn mach_port_names(
    task: u32,
    names: *mut *mut u32,
    name_count: *mut u32,
    types: *mut *mut u32,
    type_count: *mut u32,
) -> i32 {
    check_task(task);
    let all: Vec<u32> = lock().ports.names.keys().copied().collect();
    let arrays = [super::vm::allocate(all.len() * 4), super::vm::allocate(all.len() * 4)];
    for (index, &name) in all.iter().enumerate() {
        let mut kind = 0;
        mach_port_type(task, name, &raw mut kind);
        // SAFETY: both arrays have room for every name.
        unsafe {
            (arrays[0] as *mut u32).add(index).write(name);
            (arrays[1] as *mut u32).add(index).write(kind);
        }
    }
    out(names, arrays[0] as *mut u32);
    out(types, arrays[1] as *mut u32);
    out(name_count, all.len() as u32);
    out(type_count, all.len() as u32);
    KERN_SUCCESS
}

extern "C" fn mach_reply_port() -> u32 {
    let mut mach = lock();
    let port = mach.ports.create(Kind::Messages);
    mach.ports.copy_out(port, Right::Receive)
}

/// MIG's per-thread reply port.
extern "C" fn mig_get_reply_port() -> u32 {
    let thread = crate::host::kernel::thread::current();
    if thread.reply_port == 0 {
        thread.reply_port = mach_reply_port();
    }
    thread.reply_port
}

extern "C" fn mig_dealloc_reply_port(name: u32) {
    crate::host::kernel::thread::current().reply_port = 0;
    let _ = mach_port_mod_refs(lock_task(), name, RIGHT_RECEIVE, -1);
}

extern "C" fn mig_put_reply_port(_name: u32) {}

fn lock_task() -> u32 {
    lock().task
}

crate::host::libsystem::exports! {
    "mach_port_allocate" => mach_port_allocate,
    "mach_port_insert_right" => mach_port_insert_right,
    "mach_port_guard" => mach_port_guard,
    "mach_port_deallocate" => mach_port_deallocate,
    "mach_port_destroy" => mach_port_destroy,
    "mach_port_mod_refs" => mach_port_mod_refs,
    "mach_port_get_refs" => mach_port_get_refs,
    "mach_port_type" => mach_port_type,
    "mach_port_names" => mach_port_names,
    "mach_port_set_attributes" => mach_port_set_attributes,
    "mach_port_set_context" => mach_port_set_context,
    "mach_reply_port" => mach_reply_port,
    "mig_get_reply_port" => mig_get_reply_port,
    "mig_dealloc_reply_port" => mig_dealloc_reply_port,
    "mig_put_reply_port" => mig_put_reply_port,
}
