extern crate std;
use std::boxed::Box;

use super::*;

fn frame(pc: u64, address_kind: AddressKind) -> Frame {
    Frame { pc, address_kind, ..Frame::default() }
}

#[test]
fn each_address_is_recorded_and_returned_once() {
    let mut addresses = Box::new(Addresses::new());
    for _ in 0..3 {
        addresses.note(&frame(0x1000, AddressKind::INSTRUCTION));
        addresses.note(&frame(0x2000, AddressKind::RETURN));
        addresses.note(&frame(0x1000, AddressKind::RETURN));
    }
    assert_eq!((addresses.used, addresses.left()), (2, 2));
    assert_eq!((addresses.unasked(0), addresses.unasked(1), addresses.unasked(2)), (Some(0x1000), Some(0x1fff), None));
    addresses.set_asked(0);
    assert_eq!((addresses.unasked(0), addresses.left()), (None, 1));
    addresses.clear();
    assert_eq!(addresses.unasked(1), None);
    addresses.note(&frame(0x2000, AddressKind::INSTRUCTION));
    assert_eq!((addresses.used, addresses.unasked(0)), (1, Some(0x2000)));
}

#[test]
fn crashes_that_do_not_fit_are_counted() {
    let mut addresses = Box::new(Addresses::new());
    for number in 0..CAPACITY as u64 + 10 {
        addresses.note(&frame(0x40_0000 + number * 16, AddressKind::RETURN));
    }
    assert_eq!((addresses.used, addresses.dropped), (CAPACITY, 10));
    // Known addresses are still found.
    addresses.note(&frame(0x40_0000, AddressKind::RETURN));
    assert_eq!(addresses.dropped, 10);
}
