//! The numbers that the unwinder gives its results are those of the report format.

use coroner_report::wire::{FoundBy, WalkEnd};
use coroner_unwind::{End, Found, Malformed};

#[test]
fn ways_and_ends_have_the_numbers_of_the_format() {
    let mut ways = 0;
    for (number, name) in FoundBy::ALL.iter().filter(|(number, _)| *number != FoundBy::MANAGED) {
        let found = Found::from_number(number.0).unwrap();
        assert!(name.starts_with(&found.name().replace(' ', "_")), "{name}: {found:?}");
        assert_eq!(found as u8, number.0);
        ways += 1;
    }
    assert_eq!((ways, Found::from_number(FoundBy::MANAGED.0)), (12, None));
    let address = 1;
    for (end, number) in [
        (End::EndOfStack, WalkEnd::ROOT),
        (End::Unreadable { address }, WalkEnd::UNREADABLE),
        (End::NoUnwindData { address }, WalkEnd::NO_RULE),
        (End::NoProgress { sp: address }, WalkEnd::NO_PROGRESS),
        (End::FrameBudget, WalkEnd::LIMIT),
        (End::ReadBudget, WalkEnd::BUDGET),
        (End::BadUnwindData { what: Malformed::Opcode, address }, WalkEnd::MALFORMED),
        (End::BadReturnAddress { address }, WalkEnd::OUTSIDE_IMAGES),
    ] {
        assert_eq!(WalkEnd(end.number()), number, "{end:?}");
    }
}
