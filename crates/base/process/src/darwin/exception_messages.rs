//! Mach messages: exception messages in MIG's layout, and Coroner's own between its threads.
//!
//! Layouts: <mach/message.h>; the requests and replies that MIG generates from <mach/mach_exc.defs>
//! (2405 to 2408) and <mach/exc.defs> (2401 to 2403), packed to four bytes. No part of a message is
//! trusted: its sender is checked (the kernel's audit token is all zero, this process's token
//! contains its own id), and so are its id, its size, and the number and kind of its descriptors.
//!
//! Nor are its ports assumed to be those by which this process knows itself and its threads: XNU's
//! exception_deliver (osfmk/kern/exception.c) hands out *read* ports if developer mode is off,
//! which have names of their own and can't set registers. A thread is identified by its id, and its
//! port is that of `task_threads`.

use mach2::kern_return::KERN_SUCCESS;
use mach2::mach_port::{mach_port_deallocate, mach_port_mod_refs};
use mach2::message::{mach_msg, mach_msg_destroy, mach_msg_header_t};
use mach2::port::mach_port_t;
use mach2::traps::mach_task_self;

use super::threads::{ThreadList, Tid, facts, retain};

/// Maximum size of a received message with its trailer: far more than any that is understood.
const BUFFER: usize = 1024;

/// `mach_msg_header_t`.
const HEADER: usize = 24;
/// `mach_msg_port_descriptor_t`.
const DESCRIPTOR: usize = 12;
/// `NDR_record_t`.
const NDR: usize = 8;
const NDR_RECORD: [u8; NDR] = [0, 0, 0, 0, 1, 0, 0, 0];

/// Options of `mach_msg` and bits of a header (<mach/message.h>).
const SEND: i32 = 1;
const RECEIVE: i32 = 2;
const SEND_TIMEOUT: i32 = 0x10;
const RECEIVE_TIMEOUT: i32 = 0x100;
/// `MACH_RCV_TRAILER_ELEMENTS(MACH_RCV_TRAILER_AUDIT)`.
const AUDIT_TRAILER: i32 = 3 << 24;
const COMPLEX: u32 = 0x8000_0000;
const MOVE_SEND_ONCE: u32 = 18;
const COPY_SEND: u32 = 19;
const MAKE_SEND_ONCE: u32 = 21;
/// `MACH_PORT_RIGHT_RECEIVE`.
const RIGHT_RECEIVE: u32 = 1;

/// Id of Coroner's own messages: not a number of any MIG subsystem.
const OWN: i32 = 0x434f_5200;

/// `mach_exception_raise`. A request's id minus this is its behaviour minus one.
const EXCEPTION_64: i32 = 2405;
/// `mach_exception_raise_identity_protected`.
const EXCEPTION_PROTECTED: i32 = 2408;
/// `exception_raise`.
const EXCEPTION_32: i32 = 2401;
/// Difference between a reply's id and its request's.
const REPLY: i32 = 100;

/// A message's bytes, aligned as the kernel requires.
#[repr(C, align(8))]
struct Buffer([u8; BUFFER]);

impl Buffer {
    const fn new() -> Self {
        Buffer([0; BUFFER])
    }

    fn pointer(&mut self) -> *mut mach_msg_header_t {
        self.0.as_mut_ptr().cast()
    }

    fn word(&self, at: usize) -> u32 {
        let word = self.0.get(at..).and_then(|tail| tail.first_chunk::<4>());
        word.map_or(0, |word| u32::from_le_bytes(*word))
    }

    fn long(&self, at: usize) -> u64 {
        u64::from(self.word(at)) | u64::from(self.word(at.saturating_add(4))) << 32
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(place) = self.0.get_mut(at..).and_then(|tail| tail.get_mut(..bytes.len())) {
            place.copy_from_slice(bytes);
        }
    }

    fn put_word(&mut self, at: usize, word: u32) {
        self.put(at, &word.to_le_bytes());
    }

    /// Writes the header of a message to be sent.
    fn put_header(&mut self, bits: u32, size: usize, (remote, local): (mach_port_t, mach_port_t), id: i32) {
        for (place, word) in [bits, size as u32, remote, local, 0, id as u32].into_iter().enumerate() {
            self.put_word(place * 4, word);
        }
    }
}

/// Identification of the thread that raised an exception, in a message.
#[derive(Clone, Copy, Debug)]
enum Named {
    /// `EXCEPTION_DEFAULT`: ports of the thread and its task, control or read ports.
    Ports { thread: mach_port_t, task: mach_port_t },
    /// `EXCEPTION_IDENTITY_PROTECTED`: the thread's id and a token of its task.
    Id { tid: Tid, token: mach_port_t },
}

/// An exception message. [`Request::answer`] releases its rights.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    reply: mach_port_t,
    reply_kind: u32,
    id: i32,
    named: Named,
    /// Control port of the thread that raised the exception.
    ///
    /// 0 if the thread is not in this process, or has exited.
    pub thread: mach_port_t,
    /// Thread id, if the thread is in this process.
    pub tid: Tid,
    /// Whether `thread` is a right in addition to those of the message.
    found: bool,
    /// `EXC_*`.
    pub exception: i32,
    /// Code and subcode.
    pub codes: [i64; 2],
}

/// A received message.
#[derive(Clone, Copy, Debug)]
pub enum Received {
    /// An exception, in the form that Coroner's ports are registered for.
    Exception(Request),
    /// A thread has stored its crash in the slot of that number, and waits for the answer.
    HandedOver {
        /// Number of the slot.
        place: u32,
        /// The right to answer.
        reply: Reply,
    },
    /// Request to watch over a report that begins.
    Watch,
    /// Request to exit.
    Stop,
    /// No message in time, or one that is not understood and was discarded.
    Nothing,
}

/// The right to answer one of Coroner's own messages.
#[derive(Clone, Copy, Debug)]
pub struct Reply(mach_port_t);

/// The content of one of Coroner's own messages.
#[derive(Clone, Copy, Debug)]
pub enum Own {
    /// A crash is stored in the slot of that number.
    HandedOver(u32),
    /// See [`Received::Watch`].
    Watch,
    /// See [`Received::Stop`].
    Stop,
}

/// Waits for a message at `port`, without limit or for `timeout` milliseconds.
///
/// `known` is a thread that doesn't need to be searched for.
pub fn receive(port: mach_port_t, timeout: Option<u32>, known: Option<(Tid, mach_port_t)>) -> Received {
    let mut buffer = Buffer::new();
    let option = RECEIVE | AUDIT_TRAILER | if timeout.is_some() { RECEIVE_TIMEOUT } else { 0 };
    // SAFETY: the kernel writes at most the buffer's size. Async-signal-safe: a Mach trap.
    let answer = unsafe { mach_msg(buffer.pointer(), option, 0, BUFFER as u32, port, timeout.unwrap_or(0), 0) };
    if answer != KERN_SUCCESS {
        return Received::Nothing;
    }
    let mut received = understand(&buffer);
    match &mut received {
        // SAFETY: the message that was just received, whose rights are released. Async-signal-safe:
        // Mach traps.
        Received::Nothing => unsafe { mach_msg_destroy(buffer.pointer()) },
        Received::Exception(request) => request.find_thread(known),
        _ => {}
    }
    received
}

/// The sender of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sender {
    Kernel,
    This,
    Other,
}

/// Returns the sender, from the trailer after a message of `size` bytes.
///
/// All eight words of the kernel's audit token are zero; otherwise the sixth is the process's id.
fn sender(buffer: &Buffer, size: usize) -> Sender {
    /// `mach_msg_audit_trailer_t`: type, size, sequence number, security token (two words), audit
    /// token.
    const TRAILER: usize = 52;
    const TOKEN_AT: usize = 20;
    let at = size.next_multiple_of(4);
    if buffer.word(at) != 0 || (buffer.word(at + 4) as usize) < TRAILER {
        return Sender::Other;
    }
    let token = |index: usize| buffer.word(at + TOKEN_AT + index * 4);
    if (0..8).all(|index| token(index) == 0) {
        Sender::Kernel
    } else if token(5) as i32 == super::threads::process_id() {
        Sender::This
    } else {
        Sender::Other
    }
}

fn understand(buffer: &Buffer) -> Received {
    let (bits, size, remote) = (buffer.word(0), buffer.word(4) as usize, buffer.word(8));
    let id = buffer.word(20) as i32;
    if size > BUFFER - 64 {
        return Received::Nothing;
    }
    let sender = sender(buffer, size);
    if sender == Sender::Other {
        return Received::Nothing;
    }
    if id & !0xff == OWN && sender == Sender::This && bits & COMPLEX == 0 && size == HEADER + 8 {
        let value = buffer.word(HEADER);
        return match id & 0xff {
            1 => Received::HandedOver { place: value, reply: Reply(remote) },
            2 => Received::Watch,
            3 => Received::Stop,
            _ => Received::Nothing,
        };
    }
    understand_exception(buffer, size, sender).map_or(Received::Nothing, Received::Exception)
}

/// Parses an exception message; its thread is still to be found.
///
/// It has descriptors of ports (type 0), then NDR, in the protected form the thread's id, the
/// exception, the number of codes, and the codes. Another crash reporter in this process that was
/// installed later may pass on its own message in the same form; a protected one is accepted only
/// from the kernel, which alone can create its token.
fn understand_exception(buffer: &Buffer, size: usize, sender: Sender) -> Option<Request> {
    let (bits, id) = (buffer.word(0), buffer.word(20) as i32);
    let (ports, of_thread) = match id {
        EXCEPTION_64 => (2, 0),
        EXCEPTION_PROTECTED if sender == Sender::Kernel => (1, 8),
        _ => return None,
    };
    let ndr = HEADER + 4 + ports * DESCRIPTOR;
    let body = ndr + NDR + of_thread;
    let descriptor = |index: usize| HEADER + 4 + index * DESCRIPTOR;
    if size != body + 8 + 16
        || bits & COMPLEX == 0
        || buffer.word(HEADER) as usize != ports
        || (0..ports).any(|index| buffer.word(descriptor(index) + 8) >> 24 != 0)
        || buffer.word(body + 4) != 2
    {
        return None;
    }
    let named = if of_thread == 0 {
        Named::Ports { thread: buffer.word(descriptor(0)), task: buffer.word(descriptor(1)) }
    } else {
        Named::Id { tid: buffer.long(ndr + NDR), token: buffer.word(descriptor(0)) }
    };
    Some(Request {
        reply: buffer.word(8),
        reply_kind: bits & 0x1f,
        id,
        named,
        thread: 0,
        tid: 0,
        found: false,
        exception: buffer.word(body) as i32,
        codes: [buffer.long(body + 8) as i64, buffer.long(body + 16) as i64],
    })
}

impl Request {
    /// Answers the request.
    ///
    /// With `KERN_SUCCESS` the thread continues, otherwise the next handler is asked.
    pub fn answer(&self, code: i32) {
        let mut buffer = Buffer::new();
        let size = HEADER + NDR + 4;
        // A received right is returned in the way that it came: moved.
        let kind = if self.reply_kind == 0 { MOVE_SEND_ONCE } else { self.reply_kind };
        buffer.put_header(kind, size, (self.reply, 0), self.id + REPLY);
        buffer.put(HEADER, &NDR_RECORD);
        buffer.put_word(HEADER + NDR, code as u32);
        send(&mut buffer, size, 0);
        self.drop_rights();
    }

    /// Finds the thread in this process by its id.
    ///
    /// A thread of another process (a child inherits the ports) is not found: no two threads in a
    /// system have the same id.
    fn find_thread(&mut self, known: Option<(Tid, mach_port_t)>) {
        let wanted = match self.named {
            Named::Ports { thread, task } => {
                let Some(facts) = facts(thread) else { return };
                // SAFETY: a constant of the process.
                if task == unsafe { mach_task_self() } {
                    (self.thread, self.tid) = (thread, facts.tid);
                    return;
                }
                facts.tid
            }
            Named::Id { tid, .. } => tid,
        };
        if let Some((tid, port)) = known.filter(|(tid, _)| *tid == wanted) {
            (self.thread, self.tid) = (port, tid);
            return;
        }
        let Ok(list) = ThreadList::take() else { return };
        let is_it = |port: &mach_port_t| facts(*port).is_some_and(|facts| facts.tid == wanted);
        let Some(port) = list.ports().iter().copied().find(is_it).filter(|port| retain(*port)) else { return };
        (self.thread, self.tid, self.found) = (port, wanted, true);
    }

    /// Whether the kernel protects the task's and the thread's ports from the exception handler.
    ///
    /// Such ports may not be sent in messages either.
    pub fn is_protected(&self) -> bool {
        match self.named {
            Named::Id { .. } => true,
            // SAFETY: a constant of the process.
            Named::Ports { task, .. } => task != unsafe { mach_task_self() },
        }
    }

    /// The token of the task, if the kernel sent one.
    pub fn token(&self) -> Option<mach_port_t> {
        match self.named {
            Named::Id { token, .. } => Some(token),
            Named::Ports { .. } => None,
        }
    }

    fn drop_rights(&self) {
        let (one, other) = match self.named {
            Named::Ports { thread, task } => (thread, task),
            Named::Id { token, .. } => (token, 0),
        };
        for right in [one, other, if self.found { self.thread } else { 0 }].into_iter().filter(|right| *right != 0) {
            // SAFETY: releases one right that came with the message, or was taken for it.
            // Async-signal-safe: a Mach trap.
            unsafe { mach_port_deallocate(mach_task_self(), right) };
        }
    }
}

/// Sends the message in the buffer.
///
/// If the receiver's queue is full, waits for at most `timeout` milliseconds (0: without limit).
fn send(buffer: &mut Buffer, size: usize, timeout: u32) -> bool {
    let option = SEND | if timeout > 0 { SEND_TIMEOUT } else { 0 };
    // SAFETY: the kernel reads `size` bytes of the buffer. Async-signal-safe: a Mach trap.
    unsafe { mach_msg(buffer.pointer(), option, size as u32, 0, 0, timeout, 0) == KERN_SUCCESS }
}

/// Maximum time for one of Coroner's own messages to find space in a queue, in milliseconds.
const OWN_SEND_MS: u32 = 1000;

/// Writes one of Coroner's own messages into the buffer; returns its size.
fn put_own(buffer: &mut Buffer, port: mach_port_t, reply: mach_port_t, own: Own) -> usize {
    let (number, value) = match own {
        Own::HandedOver(place) => (1, place),
        Own::Watch => (2, 0),
        Own::Stop => (3, 0),
    };
    let bits = COPY_SEND | if reply == 0 { 0 } else { MAKE_SEND_ONCE << 8 };
    buffer.put_header(bits, HEADER + 8, (port, reply), OWN | number);
    buffer.put_word(HEADER, value);
    HEADER + 8
}

/// Sends one of Coroner's own messages to one of its ports. `false` if it could not be sent.
pub fn tell(port: mach_port_t, own: Own) -> bool {
    let mut buffer = Buffer::new();
    let size = put_own(&mut buffer, port, 0, own);
    send(&mut buffer, size, OWN_SEND_MS)
}

/// Sends one of Coroner's own messages and waits for the answer, at most that many milliseconds.
///
/// `false` if there was no answer.
pub fn ask(port: mach_port_t, own: Own, milliseconds: u32) -> bool {
    // SAFETY: creates a port whose receive right is ours. Async-signal-safe: a Mach trap.
    let reply = unsafe { mach_reply_port() };
    if reply == 0 {
        return false;
    }
    let mut buffer = Buffer::new();
    let size = put_own(&mut buffer, port, reply, own);
    let option = SEND | SEND_TIMEOUT | RECEIVE | RECEIVE_TIMEOUT | AUDIT_TRAILER;
    // SAFETY: the kernel reads `size` bytes of the buffer and writes at most its size.
    // Async-signal-safe: a Mach trap.
    let answer = unsafe { mach_msg(buffer.pointer(), option, size as u32, BUFFER as u32, reply, milliseconds, 0) };
    // SAFETY: releases our own receive right. Async-signal-safe: a Mach trap.
    unsafe { mach_port_mod_refs(mach_task_self(), reply, RIGHT_RECEIVE, -1) };
    // A discarded right answers with a notification from the kernel, which has another id.
    answer == KERN_SUCCESS && buffer.word(20) as i32 & !0xff == OWN
}

impl Reply {
    /// Sends the answer.
    pub fn answer(self) {
        if self.0 == 0 {
            return;
        }
        let mut buffer = Buffer::new();
        buffer.put_header(MOVE_SEND_ONCE, HEADER, (self.0, 0), OWN);
        send(&mut buffer, HEADER, 0);
    }
}

unsafe extern "C" {
    /// <mach/mach_traps.h>.
    fn mach_reply_port() -> mach_port_t;
}

/// Maximum size of a thread state in a message, in bytes.
///
/// `THREAD_STATE_MAX` in <mach/i386/thread_status.h> and <mach/arm/thread_status.h> is 614 and 1296
/// words; a state larger than a buffer is not sent.
pub const STATE: usize = 640;

/// The message form requested by an earlier holder of an exception port.
#[derive(Clone, Copy, Debug, Default)]
pub struct Form {
    /// `EXCEPTION_DEFAULT` 1, `EXCEPTION_STATE` 2, `EXCEPTION_STATE_IDENTITY` 3,
    /// `EXCEPTION_IDENTITY_PROTECTED` 4.
    pub behavior: i32,
    /// Whether codes have 64 bits (`MACH_EXCEPTION_CODES`).
    pub wide: bool,
    /// The flavour of the states.
    pub flavor: i32,
}

/// A thread's state on its way to a handler and back.
#[derive(Debug)]
#[repr(C, align(8))]
pub struct State {
    /// The state's words.
    pub bytes: [u8; STATE],
    /// Number of valid bytes.
    pub length: usize,
}

/// Passes an exception on to another port in that port's form, and waits for the answer.
///
/// Returns the answer's code, and stores a new state in `state` if the answer contains one. `None`
/// if the port is dead or discards the message.
pub fn pass_on(request: &Request, port: mach_port_t, form: Form, state: &mut State) -> Option<i32> {
    let mut buffer = Buffer::new();
    // SAFETY: creates a port whose receive right is ours. Async-signal-safe: a Mach trap.
    let reply = unsafe { mach_reply_port() };
    let mut at = HEADER;
    let mut bits = COPY_SEND | MAKE_SEND_ONCE << 8;
    let with_state = matches!(form.behavior, 2 | 3);
    // SAFETY: a constant of the process.
    let identity = [request.thread, unsafe { mach_task_self() }];
    let token = [request.token().unwrap_or(0)];
    let rights: &[mach_port_t] = match form.behavior {
        2 => &[],
        4 => &token,
        _ => &identity,
    };
    if !rights.is_empty() {
        bits |= COMPLEX;
        buffer.put_word(at, rights.len() as u32);
        for (index, right) in rights.iter().enumerate() {
            let descriptor = at + 4 + index * DESCRIPTOR;
            buffer.put_word(descriptor, *right);
            buffer.put_word(descriptor + 8, COPY_SEND << 16);
        }
        at += 4 + rights.len() * DESCRIPTOR;
    }
    buffer.put(at, &NDR_RECORD);
    at += NDR;
    if form.behavior == 4 {
        buffer.put(at, &request.tid.to_le_bytes());
        at += 8;
    }
    buffer.put_word(at, request.exception as u32);
    buffer.put_word(at + 4, 2);
    at += 8;
    for code in request.codes {
        if form.wide {
            buffer.put(at, &code.to_le_bytes());
            at += 8;
        } else {
            // CAST_DOWN of osfmk/kern/exception.c.
            buffer.put_word(at, code as u32);
            at += 4;
        }
    }
    if with_state {
        buffer.put_word(at, form.flavor as u32);
        buffer.put_word(at + 4, (state.length / 4) as u32);
        buffer.put(at + 8, state.bytes.get(..state.length).unwrap_or_default());
        at += 8 + state.length;
    }
    let id = if form.wide { EXCEPTION_64 } else { EXCEPTION_32 } + form.behavior - 1;
    buffer.put_header(bits, at, (port, reply), id);
    // SAFETY: the kernel reads `at` bytes of the buffer and writes at most its size.
    // Async-signal-safe: a Mach trap. No time limit: the thread would wait for that handler just as
    // long.
    let answer = unsafe { mach_msg(buffer.pointer(), SEND | RECEIVE, at as u32, BUFFER as u32, reply, 0, 0) };
    // SAFETY: releases our own receive right. Async-signal-safe: a Mach trap.
    unsafe { mach_port_mod_refs(mach_task_self(), reply, RIGHT_RECEIVE, -1) };
    if answer != KERN_SUCCESS || buffer.word(20) as i32 != id + REPLY || buffer.word(0) & COMPLEX != 0 {
        return None;
    }
    let code = buffer.word(HEADER + NDR) as i32;
    if with_state && code == KERN_SUCCESS {
        let length = (buffer.word(HEADER + NDR + 8) as usize).saturating_mul(4);
        let new = buffer.0.get(HEADER + NDR + 12..).and_then(|tail| tail.get(..length)).filter(|_| length <= STATE);
        state.length = 0;
        if let (Some(new), Some(place)) = (new, state.bytes.get_mut(..length)) {
            place.copy_from_slice(new);
            state.length = length;
        }
    }
    Some(code)
}

#[cfg(test)]
mod tests;
