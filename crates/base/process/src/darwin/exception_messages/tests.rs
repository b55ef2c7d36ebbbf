use super::*;

/// The audit tokens of the kernel and of this process.
const KERNEL: [u32; 8] = [0; 8];
fn this() -> [u32; 8] {
    [501, 501, 20, 501, 20, crate::threads::process_id() as u32, 1, 1]
}

/// Creates a message with that id, size and number of port descriptors, with the kernel's trailer.
fn message(id: i32, size: usize, ports: usize, sender: [u32; 8]) -> Buffer {
    let mut buffer = Buffer::new();
    buffer.put_header(COMPLEX | MOVE_SEND_ONCE, size, (0x1203, 0x1307), id);
    buffer.put_word(HEADER, ports as u32);
    // The number of codes, after the descriptors, NDR, the thread's id if there is one, and the
    // exception.
    let of_thread = if ports == 1 { 8 } else { 0 };
    buffer.put_word(HEADER + 4 + ports * DESCRIPTOR + NDR + of_thread + 4, 2);
    buffer.put_word(size + 4, 52);
    for (index, word) in sender.into_iter().enumerate() {
        buffer.put_word(size + 20 + index * 4, word);
    }
    buffer
}

/// Sizes of `mach_exception_raise` with 64-bit codes, and of its protected form.
const SIZE: usize = 84;
const PROTECTED_SIZE: usize = 80;

fn is_exception(buffer: &Buffer) -> bool {
    matches!(understand(buffer), Received::Exception(_))
}

#[test]
fn the_forms_that_are_asked_for_are_understood() {
    let mut default = message(2405, SIZE, 2, KERNEL);
    for (at, word) in [(28, 0x703), (40, 0x103), (60, 1), (68, 2), (76, 7), (80, 9)] {
        default.put_word(at, word);
    }
    let Received::Exception(request) = understand(&default) else { panic!("it is refused") };
    assert!(matches!(request.named, Named::Ports { thread: 0x703, .. }));
    assert_eq!((request.exception, request.codes[1]), (1, 9 << 32 | 7));

    let mut protected = message(2408, PROTECTED_SIZE, 1, KERNEL);
    for (at, word) in [(28, 0x903), (48, 77), (52, 1), (56, 6), (64, 3)] {
        protected.put_word(at, word);
    }
    let Received::Exception(request) = understand(&protected) else { panic!("the protected one is refused") };
    assert!(matches!(request.named, Named::Id { tid: 0x1_0000_004d, token: 0x903 }));
    assert_eq!((request.exception, request.codes[0]), (6, 3));
    // Another reporter in this process may pass one on in the plain form.
    assert!(is_exception(&message(2405, SIZE, 2, this())));
}

#[test]
fn forged_messages_are_rejected() {
    // The sender: another process, and a protected message that the kernel did not send.
    let mut other = this();
    other[5] += 1;
    assert!(!is_exception(&message(2405, SIZE, 2, other)));
    assert!(!is_exception(&message(2408, PROTECTED_SIZE, 1, this())));
    // The id, the size, the number of descriptors.
    for id in [0, 2401, 2404, 2406, 2407, 2409, 2505, OWN | 9] {
        assert!(!is_exception(&message(id, SIZE, 2, KERNEL)), "{id}");
    }
    for size in [HEADER, SIZE - 4, SIZE + 4, BUFFER - 64, BUFFER - 60] {
        assert!(!is_exception(&message(2405, size, 2, KERNEL)), "{size}");
    }
    for ports in [0, 1, 3, u32::MAX] {
        let mut wrong = message(2405, SIZE, 2, KERNEL);
        wrong.put_word(HEADER, ports);
        assert!(!is_exception(&wrong), "{ports} ports");
    }
    // Any single word of a valid message: bits, size, id, a descriptor's type, the number of codes,
    // the trailer's type and size.
    let spoilt = [(0, 0x12), (4, u32::MAX), (20, 1), (36, 1 << 24), (48, 2 << 24), (64, 3), (SIZE, 1), (SIZE + 4, 8)];
    for (at, word) in spoilt {
        let mut wrong = message(2405, SIZE, 2, KERNEL);
        wrong.put_word(at, word);
        assert!(!is_exception(&wrong), "the word at {at}");
    }
}

#[test]
fn own_messages_are_accepted_only_from_this_process() {
    let own = |sender: [u32; 8], size: usize| {
        let mut buffer = message(OWN | 3, size, 0, sender);
        buffer.put_word(0, MOVE_SEND_ONCE);
        understand(&buffer)
    };
    assert!(matches!(own(this(), HEADER + 8), Received::Stop));
    assert!(matches!(own(KERNEL, HEADER + 8), Received::Nothing));
    assert!(matches!(own(this(), HEADER + 12), Received::Nothing));
}
