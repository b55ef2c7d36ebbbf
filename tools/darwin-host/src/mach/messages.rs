//! `mach_msg`: sending, receiving, descriptors and trailers.
//!
//! Layouts and codes: <mach/message.h>. Behavior: XNU osfmk/ipc/mach_msg.c, ipc_kmsg.c (copyin,
//! copyout, trailers). Port descriptors are supported; out-of-line memory and port arrays are
//! refused.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use super::ports::{ARRIVALS, Kind, PortId, Right};
use crate::host::{
    kernel::{ending::refuse, futex, lock, pages},
    libsystem::conditions,
};

const HEADER: usize = 24;
const BITS_COMPLEX: u32 = 0x8000_0000;
const DESCRIPTOR: usize = 12;

const SEND_MSG: u32 = 0x1;
const RCV_MSG: u32 = 0x2;
const RCV_LARGE: u32 = 0x4;
const SEND_TIMEOUT: u32 = 0x10;
const RCV_TIMEOUT: u32 = 0x100;
const INTERRUPTS: u32 = 0x440;
/// Options without effect here.
///
/// MACH_SEND_OVERRIDE, MACH_SEND_NOIMPORTANCE, MACH_RCV_LARGE_IDENTITY, MACH_RCV_VOUCHER,
/// MACH_MSG_STRICT_REPLY.
const NO_EFFECT: u32 = 0x20 | 0x4_0000 | 0x8 | 0x800 | 0x200;
const TRAILER_BITS: u32 = 0xff00_0000;

const SEND_INVALID_DATA: i32 = 0x1000_0002;
const SEND_INVALID_DEST: i32 = 0x1000_0003;
const SEND_TIMED_OUT: i32 = 0x1000_0004;
const SEND_MSG_TOO_SMALL: i32 = 0x1000_0008;
const SEND_INVALID_REPLY: i32 = 0x1000_0009;
const SEND_INVALID_RIGHT: i32 = 0x1000_000a;
const SEND_INVALID_HEADER: i32 = 0x1000_0010;
const RCV_INVALID_NAME: i32 = 0x1000_4002;
const RCV_TIMED_OUT: i32 = 0x1000_4003;
const RCV_TOO_LARGE: i32 = 0x1000_4004;
const RCV_PORT_CHANGED: i32 = 0x1000_4006;
const RCV_PORT_DIED: i32 = 0x1000_4009;
const RCV_INVALID_DATA: i32 = 0x1000_4008;

/// A message in a queue: its rights refer to ports, and become names again at the receiver.
#[derive(Debug)]
pub(crate) struct Message {
    /// Header and body. The ports in header and descriptors are filled in on receipt.
    bytes: Vec<u8>,
    destination: (PortId, Right),
    reply: Option<(PortId, Right)>,
    /// Rights by descriptor.
    descriptors: Vec<(PortId, Right)>,
    /// Whether the kernel sent it; its trailer then contains no user.
    from_kernel: bool,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

fn set_word(bytes: &mut [u8], at: usize, value: u32) {
    if let Some(place) = bytes.get_mut(at..at + 4) {
        place.copy_from_slice(&value.to_le_bytes());
    }
}

impl Message {
    /// Creates a message from the kernel to a handler: `body` starts after the header.
    ///
    /// With descriptors it is a complex message, and `body` starts after them.
    pub(crate) fn from_kernel(to: PortId, reply: PortId, id: i32, ports: &[(PortId, Right)], body: &[u8]) -> Message {
        let mut bytes = vec![0; HEADER];
        if !ports.is_empty() {
            set_word(&mut bytes, 0, BITS_COMPLEX);
            bytes.extend_from_slice(&(ports.len() as u32).to_le_bytes());
            for _ in ports {
                // mach_msg_port_descriptor_t: name, padding, 16 bits, disposition, type (0).
                bytes.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 17, 0]);
            }
        }
        bytes.extend_from_slice(body);
        let size = bytes.len() as u32;
        set_word(&mut bytes, 4, size);
        set_word(&mut bytes, 20, id as u32);
        Message {
            bytes,
            destination: (to, Right::Send),
            reply: Some((reply, Right::SendOnce)),
            descriptors: ports.to_vec(),
            from_kernel: true,
        }
    }

    /// Creates a notification without a body.
    pub(crate) fn notification(to: PortId, id: u32) -> Message {
        let mut bytes = vec![0; HEADER];
        set_word(&mut bytes, 4, HEADER as u32);
        set_word(&mut bytes, 20, id);
        Message { bytes, destination: (to, Right::SendOnce), reply: None, descriptors: Vec::new(), from_kernel: true }
    }

    pub(crate) fn size(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Returns the message's rights.
    pub(crate) fn rights(&self) -> Vec<(PortId, Right)> {
        self.reply.iter().chain(&self.descriptors).copied().collect()
    }
}

/// `mach_msg` (and `mach_msg_overwrite`, with another address to receive at).
extern "C" fn mach_msg(
    message: usize,
    option: u32,
    send_size: u32,
    receive_limit: u32,
    receive_name: u32,
    timeout: u32,
    _notify: u32,
) -> i32 {
    transfer(message, option, send_size, receive_limit, receive_name, timeout, message)
}

extern "C" fn mach_msg_overwrite(
    message: usize,
    option: u32,
    send_size: u32,
    receive_limit: u32,
    receive_name: u32,
    timeout: u32,
    _notify: u32,
    receive_at: usize,
    _receive_scatter: u32,
) -> i32 {
    let receive_at = if receive_at == 0 { message } else { receive_at };
    transfer(message, option, send_size, receive_limit, receive_name, timeout, receive_at)
}

/// `mach_msg_send` and `mach_msg_receive` (libsyscall/mach/mach_msg.c).
extern "C" fn mach_msg_send(message: usize) -> i32 {
    let size = pages::read_value::<u32>(message + 4).unwrap_or(0);
    transfer(message, SEND_MSG, size, 0, 0, 0, message)
}

extern "C" fn mach_msg_receive(message: usize) -> i32 {
    let (size, name) = (pages::read_value::<u32>(message + 4), pages::read_value::<u32>(message + 12));
    transfer(message, RCV_MSG, 0, size.unwrap_or(0), name.unwrap_or(0), 0, message)
}

/// `mach_msg_destroy` (libsyscall/mach/mach_msg.c): releases the rights of a received message.
///
/// These are the rights of its reply port and descriptors. The right by which it was received needs
/// no release.
extern "C" fn mach_msg_destroy(message: usize) {
    use super::ports::{MOVE_RECEIVE, MOVE_SEND, MOVE_SEND_ONCE, mach_port_deallocate, mach_port_mod_refs};
    let read = |at: usize| pages::read_value::<u32>(message + at).unwrap_or(0);
    let task = lock().task;
    let destroy = |name: u32, disposition: u32| match disposition {
        MOVE_SEND | MOVE_SEND_ONCE if name != 0 => drop(mach_port_deallocate(task, name)),
        MOVE_RECEIVE if name != 0 => drop(mach_port_mod_refs(task, name, 1, -1)),
        _ => {}
    };
    let bits = read(0);
    destroy(read(8), bits & 0x1f);
    if bits & BITS_COMPLEX != 0 {
        for index in 0..read(HEADER) as usize {
            let descriptor = HEADER + 4 + index * DESCRIPTOR;
            destroy(read(descriptor), read(descriptor + 8) >> 16 & 0xff);
        }
    }
}

fn transfer(message: usize, option: u32, send_size: u32, limit: u32, name: u32, timeout: u32, at: usize) -> i32 {
    let known = SEND_MSG | RCV_MSG | RCV_LARGE | SEND_TIMEOUT | RCV_TIMEOUT | INTERRUPTS | NO_EFFECT | TRAILER_BITS;
    if option & !known != 0 {
        refuse!("mach_msg with options {:#x}", option & !known);
    }
    if option & SEND_MSG != 0 {
        let result = send(message, send_size as usize, (option & SEND_TIMEOUT != 0).then_some(timeout));
        if result != 0 {
            return result;
        }
    }
    if option & RCV_MSG != 0 {
        return receive(at, option, limit as usize, name, (option & RCV_TIMEOUT != 0).then_some(timeout));
    }
    0
}

fn deadline(timeout: Option<u32>) -> Option<Instant> {
    timeout.map(|ms| Instant::now() + Duration::from_millis(u64::from(ms)))
}

/// Sleeps until something arrives after `seen`; returns false on timeout.
fn wait(seen: u32, deadline: Option<Instant>) -> bool {
    let left = match deadline {
        None => None,
        Some(end) => match end.checked_duration_since(Instant::now()) {
            Some(left) if !left.is_zero() => Some(left),
            _ => return false,
        },
    };
    futex::wait(&ARRIVALS, seen, left);
    true
}

fn send(at: usize, size: usize, timeout: Option<u32>) -> i32 {
    if size < HEADER {
        return SEND_MSG_TOO_SMALL;
    }
    let mut bytes = vec![0; size];
    if !pages::copy_in(at, &mut bytes) {
        return SEND_INVALID_DATA;
    }
    set_word(&mut bytes, 4, size as u32);
    let (bits, remote, local) = (word(&bytes, 0), word(&bytes, 8), word(&bytes, 12));
    let (remote_type, local_type) = (bits & 0x1f, (bits >> 8) & 0x1f);
    if remote_type == 0 || bits & 0x5fe0_e0e0 != 0 {
        return SEND_INVALID_HEADER;
    }
    if bits & 0x001f_0000 != 0 {
        refuse!("mach_msg with a voucher");
    }
    let count = if bits & BITS_COMPLEX != 0 { word(&bytes, HEADER) as usize } else { 0 };
    if HEADER + 4 + count * DESCRIPTOR > size && count > 0 {
        return SEND_MSG_TOO_SMALL;
    }
    let end = deadline(timeout);
    loop {
        let seen = ARRIVALS.load(Ordering::SeqCst);
        let mut mach = lock();
        let ports = &mut mach.ports;
        match ports.id(remote) {
            Some(port) if !ports.alive(port) => return SEND_INVALID_DEST,
            None => return SEND_INVALID_DEST,
            // A full queue blocks the sender, but not a reply (send-once rights always have room).
            Some(port) if !ports.has_room(port) && remote_type != super::ports::MOVE_SEND_ONCE => {
                drop(mach);
                if !wait(seen, end) {
                    return SEND_TIMED_OUT;
                }
                continue;
            }
            Some(port) if !ports.is_messages(port) && !matches!(ports.kernel_kind(port), Kind::Reply(_)) => {
                let id = word(&bytes, 20);
                drop(mach);
                refuse!("a raw message with id {id} to a kernel object's port");
            }
            Some(_) => {}
        }
        // The reply right first, as in ipc_kmsg_copyin_header: a bad one leaves the destination's
        // right unchanged.
        let reply = match (local, local_type) {
            (0, _) => None,
            (name, kind) => match ports.copy_in(name, kind) {
                Ok(right) => Some(right),
                Err(_) => return SEND_INVALID_REPLY,
            },
        };
        let Ok(destination) = ports.copy_in(remote, remote_type) else { return SEND_INVALID_DEST };
        let mut descriptors = Vec::new();
        for index in 0..count {
            let place = HEADER + 4 + index * DESCRIPTOR;
            let (name, kind) = (word(&bytes, place), word(&bytes, place + 8) >> 24);
            if kind != 0 {
                drop(mach);
                refuse!("a message with a descriptor of type {kind}: only port descriptors");
            }
            match ports.copy_in(name, (word(&bytes, place + 8) >> 16) & 0xff) {
                Ok((port, _))
                    if conditions::is_later()
                        && matches!(
                            ports.kernel_kind(port),
                            Kind::Task | Kind::Thread(_) | Kind::TaskRead | Kind::ThreadRead(_)
                        ) =>
                {
                    drop(mach);
                    refuse!(
                        "a message with an immovable port of the task or a thread: EXC_GUARD would end the process"
                    );
                }
                Ok(right) => descriptors.push(right),
                Err(_) => return SEND_INVALID_RIGHT,
            }
        }
        let to = destination.0;
        ports.enqueue(to, Message { bytes, destination, reply, descriptors, from_kernel: false });
        return 0;
    }
}

/// Creates the trailer that the receiver requested (MACH_RCV_TRAILER_*), at least eight bytes.
fn trailer(option: u32, sequence: u32, from_kernel: bool) -> Vec<u8> {
    let elements = (option >> 24) & 0xf;
    // seqno; sender: uid and gid; audit token: auid, euid, egid, ruid, rgid, pid, asid, pid
    // version; context; filter.
    let size: u32 = match elements {
        0 => 8,
        1 => 12,
        2 => 20,
        3 => 52,
        4 => 60,
        7 => 68,
        other => refuse!("MACH_RCV_TRAILER_ELEMENTS({other})"),
    };
    // SAFETY: no preconditions.
    let (uid, gid, pid) = unsafe { (libc::getuid(), libc::getgid(), conditions::sender() as u32) };
    // KERNEL_SECURITY_TOKEN is {0, 1}, KERNEL_AUDIT_TOKEN all zero (XNU osfmk/ipc/ipc_kmsg.c).
    let words: [u32; 17] = if from_kernel {
        [0, size, sequence, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    } else {
        [0, size, sequence, uid, gid, uid, uid, gid, uid, gid, pid, 100_000, 1, 0, 0, 0, 0]
    };
    words.iter().flat_map(|w| w.to_le_bytes()).take(size as usize).collect()
}

fn receive(at: usize, option: u32, limit: usize, name: u32, timeout: Option<u32>) -> i32 {
    let end = deadline(timeout);
    let trailer_size = trailer(option, 0, true).len();
    let Some(port) = lock().ports.receiver(name) else { return RCV_INVALID_NAME };
    let (bytes, too_large) = loop {
        let seen = ARRIVALS.load(Ordering::SeqCst);
        let mut mach = lock();
        let ports = &mut mach.ports;
        if !ports.alive(port) {
            return RCV_PORT_DIED;
        }
        if ports.receiver(name) != Some(port) {
            return RCV_PORT_CHANGED;
        }
        if let Some(size) = ports.peek(port) {
            if size + trailer_size > limit {
                if option & RCV_LARGE == 0
                    && let Some((message, _)) = ports.dequeue(port)
                {
                    ports.discard(&message);
                }
                let mut header = vec![0; HEADER];
                set_word(&mut header, 4, size as u32);
                set_word(&mut header, 12, name);
                break (header, true);
            }
            if let Some((message, sequence)) = ports.dequeue(port) {
                futex::advance(&ARRIVALS); // a sender may wait for room
                let mut bytes = message.bytes;
                // Ports are returned as names; the bits contain the types of the rights.
                let kind = |right: Right| match right {
                    Right::Receive => 16u32,
                    Right::Send => 17,
                    Right::SendOnce => 18,
                };
                let mut bits = word(&bytes, 0) & BITS_COMPLEX;
                bits |= kind(message.destination.1) << 8;
                let reply = message.reply.map_or(0, |(reply, right)| {
                    bits |= kind(right);
                    ports.copy_out(reply, right)
                });
                set_word(&mut bytes, 0, bits);
                set_word(&mut bytes, 8, reply);
                set_word(&mut bytes, 12, name);
                set_word(&mut bytes, 16, 0);
                for (index, (port, right)) in message.descriptors.into_iter().enumerate() {
                    let place = HEADER + 4 + index * DESCRIPTOR;
                    let name = ports.copy_out(port, right);
                    set_word(&mut bytes, place, name);
                    set_word(&mut bytes, place + 4, 0);
                    set_word(&mut bytes, place + 8, kind(right) << 16);
                }
                bytes.extend_from_slice(&trailer(option, sequence, message.from_kernel));
                break (bytes, false);
            }
        }
        drop(mach);
        if !wait(seen, end) {
            return RCV_TIMED_OUT;
        }
    };
    if !pages::copy_out(&bytes, at) {
        return RCV_INVALID_DATA;
    }
    if too_large { RCV_TOO_LARGE } else { 0 }
}

crate::host::libsystem::exports! {
    "mach_msg" => mach_msg,
    "mach_msg_overwrite" => mach_msg_overwrite,
    "mach_msg_send" => mach_msg_send,
    "mach_msg_receive" => mach_msg_receive,
    "mach_msg_destroy" => mach_msg_destroy,
}
