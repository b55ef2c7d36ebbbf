extern crate std;

use super::*;
use coroner_process::memory::Unreadable;

/// Fake memory with words at addresses; texts are read from this process.
struct Words(&'static [(u64, u64)]);

impl Memory for Words {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        match self.0.iter().find(|(at, _)| *at == address) {
            Some((_, word)) => into.copy_from_slice(&word.to_le_bytes()[..into.len()]),
            None => return Err(Unreadable { address }),
        }
        Ok(())
    }
}

fn name() -> u64 {
    0x1000
}

#[test]
fn an_object_keeps_its_class_until_its_address_is_reused() {
    assert_eq!(class_at(0x7000_0000_0010), None);
    note(0x7000_0000_0010, 0x5000, name);
    note(0x7000_0000_0020, 0x5008, name);
    assert_eq!((class_at(0x7000_0000_0010), class_at(0x7000_0000_0020)), (Some(0x5000), Some(0x5008)));
    note(0x7000_0000_0010, 0x5008, name);
    assert_eq!(class_at(0x7000_0000_0010), Some(0x5008));
    assert_eq!((class_at(0x7000_0000_0011), class_at(0), class_at(BUSY)), (None, None, None));
}

/// Two objects share one place: the later one is remembered, and the earlier one is not mistaken
/// for it.
#[test]
fn objects_at_the_same_address_are_not_confused() {
    let first = 0x6000_0000_0000_u64;
    let second = (1..1 << 24)
        .map(|step| first + step * 16)
        .find(|other| place_of(*other, BITS) == place_of(first, BITS))
        .unwrap();
    note(first, 0x5000, name);
    note(second, 0x5008, name);
    assert_eq!((class_at(first), class_at(second)), (None, Some(0x5008)));
}

/// Two threads write one place: a concurrent reader finds an address with its own class, or none.
#[test]
fn an_address_is_never_recorded_with_another_objects_class() {
    let first = 0x6100_0000_0000_u64;
    let second = (1..1 << 24)
        .map(|step| first + step * 16)
        .find(|other| place_of(*other, BITS) == place_of(first, BITS))
        .unwrap();
    std::thread::scope(|scope| {
        for (object, class) in [(first, 0x5100), (second, 0x5108)] {
            scope.spawn(move || (0..20_000).for_each(|_| note(object, class, name)));
        }
        for _ in 0..20_000 {
            assert!(matches!(class_at(first), None | Some(0x5100)));
            assert!(matches!(class_at(second), None | Some(0x5108)));
        }
    });
}

#[test]
fn a_class_is_asked_for_its_name_once() {
    note(0x7100_0000_0010, 0x5200, || 0x77);
    note(0x7100_0000_0020, 0x5200, || unreachable!());
    let mut memory = Words(&[(0x77, b'A' as u64), (0x78, b'b' as u64), (0x79, 0)]);
    assert_eq!(class_name(&mut memory, 0x5200, &mut [0; 8]), b"Ab");
    // Too long, never noted, unreadable.
    assert_eq!(class_name(&mut memory, 0x5200, &mut [0; 2]), b"");
    assert_eq!(class_name(&mut memory, 0x5208, &mut [0; 8]), b"");
    assert_eq!(class_name(&mut Words(&[]), 0x5200, &mut [0; 8]), b"");
}

#[test]
fn a_valid_class_chain_is_required_to_recognize_an_object() {
    enable(&Runtime {
        isa_mask: 0x0000_7fff_ffff_fff8,
        message_send: (0x100, 0x180),
        message_send_stret: (0x200, 0x280),
    });
    // Object, class, metaclass, root metaclass.
    let object: &[(u64, u64)] = &[(0x10, 0x0100_0000_0000_0101), (0x100, 0x200), (0x200, 0x300), (0x300, 0x300)];
    assert_eq!(class_now(&mut Words(object), 0x10), Some(0x100));
    // A list of free blocks, and a list of a single one.
    assert_eq!(class_now(&mut Words(&[(0x10, 0x20), (0x20, 0x30), (0x30, 0x40), (0x40, 0)]), 0x10), None);
    assert_eq!(class_now(&mut Words(&[(0x10, 0)]), 0x10), None);
    assert_eq!(class_now(&mut Words(&[]), 0x10), None);
    assert_eq!((receiver_argument(0x17f), receiver_argument(0x180)), (Some(0), None));
    assert_eq!((receiver_argument(0x200), receiver_argument(0)), (Some(1), None));
}

#[test]
fn the_last_deallocated_exception_is_kept_complete() {
    note_exception(0x10, 0x20, b"NSRangeException", &[b'x'; 2 * MAX_TEXT]);
    let kept = with_last_exception(|address, class, name, reason| {
        assert_eq!(name, b"NSRangeException");
        (address, class, reason.len())
    });
    assert_eq!(kept, Some((0x10, 0x20, MAX_TEXT)));
    note_exception(0x30, 0x40, b"A", b"");
    assert_eq!(with_last_exception(|_, _, name, reason| (name == b"A", reason.len())), Some((true, 0)));
}
