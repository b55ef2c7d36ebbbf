//! Messages to Coroner's exception port that it must reject. Each contains a right for the answer:
//! the kernel sends a notification there if the message is discarded, and Coroner would answer an
//! accepted exception.

use mach2::kern_return::KERN_SUCCESS;
use mach2::mach_init::mach_thread_self;
use mach2::message::{mach_msg, mach_msg_header_t};
use mach2::port::mach_port_t;
use mach2::task::task_get_exception_ports;
use mach2::traps::mach_task_self;

use crate::host;

/// Returns Coroner's port, which any code in the process can request.
fn exception_port() -> mach_port_t {
    let (mut mask, mut port, mut behavior, mut flavor, mut count) = (0, 0, 0, 0, 1);
    // SAFETY: results are local, one of each.
    let status = unsafe {
        task_get_exception_ports(
            mach_task_self(),
            1 << 1,
            &raw mut mask,
            &raw mut count,
            &raw mut port,
            &raw mut behavior,
            &raw mut flavor,
        )
    };
    assert!(status == KERN_SUCCESS && port != 0, "Coroner holds the port");
    port
}

/// Sends a `mach_exception_raise` of this thread for an access to 0x18, with some words (at byte
/// offsets) replaced and the given size. Returns the id of the answer.
fn send(spoilt: &[(usize, u32)], size: u32) -> u32 {
    #[repr(C, align(8))]
    struct Message([u32; 256]);
    unsafe extern "C" {
        fn mach_reply_port() -> mach_port_t;
    }
    let mut message = Message([0; 256]);
    // SAFETY: our own ports; the kernel reads `size` bytes and writes at most the buffer's.
    unsafe {
        let reply = mach_reply_port();
        let right = exception_port();
        let words = [
            // Header: COPY_SEND, MAKE_SEND_ONCE, complex; two descriptors of COPY_SEND; NDR;
            // EXC_BAD_ACCESS; two codes.
            (0, 0x8000_0000 | 21 << 8 | 19),
            (4, size),
            (8, right),
            (12, reply),
            (20, 2405),
            (24, 2),
            (28, mach_thread_self()),
            (36, 19 << 16),
            (40, mach_task_self()),
            (48, 19 << 16),
            (56, 1),
            (60, 1),
            (64, 2),
            (68, 1),
            (76, 0x18),
        ];
        for (at, word) in words.into_iter().chain(spoilt.iter().copied()) {
            message.0[at / 4] = word;
        }
        let at: *mut mach_msg_header_t = (&raw mut message).cast();
        let answer = mach_msg(at, 1 | 2 | 0x100, size, 1024, reply, 20_000, 0);
        assert_eq!(answer, KERN_SUCCESS, "an answer, or that there will be none");
        mach2::mach_port::mach_port_mod_refs(mach_task_self(), reply, 1, -1);
        mach2::mach_port::mach_port_deallocate(mach_task_self(), right);
        mach2::mach_port::mach_port_deallocate(mach_task_self(), message_thread());
    }
    message.0[5]
}

/// Returns the name of the right to this thread that [`send`] used.
fn message_thread() -> mach_port_t {
    // SAFETY: a right of our own.
    unsafe {
        let port = mach_thread_self();
        mach2::mach_port::mach_port_deallocate(mach_task_self(), port);
        port
    }
}

/// `MACH_NOTIFY_SEND_ONCE`: the right for the answer was destroyed.
const THROWN_AWAY: u32 = 71;
const SIZE: u32 = 84;

/// Sends forged messages: none may be accepted as an exception or leave a right behind.
pub(crate) fn send_all() {
    let before = host::port_names();
    // Id, size, descriptors, count of codes; a protected one, which only the kernel can send.
    let wrong: &[(&[(usize, u32)], u32)] = &[
        (&[(20, 2401)], SIZE),
        (&[(20, 2406)], SIZE),
        (&[(20, 0x1234)], SIZE),
        (&[], SIZE - 8),
        (&[], SIZE + 8),
        (&[], 900),
        (&[(24, 1)], SIZE),
        (&[(64, 1)], SIZE),
        (&[(20, 2408), (24, 1), (60, 2)], SIZE - 4),
    ];
    for (index, (spoilt, size)) in wrong.iter().enumerate() {
        assert_eq!(send(spoilt, *size), THROWN_AWAY, "forged message {index}");
    }
    // A right one of another process.
    host::send_as(1);
    assert_eq!(send(&[], SIZE), THROWN_AWAY, "a message of another process");
    host::send_as(0);
    assert_eq!(host::port_names(), before, "rights of forged messages are given back");
}
