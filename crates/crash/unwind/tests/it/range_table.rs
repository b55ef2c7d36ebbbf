//! Code ranges registered by an app.

use std::sync::atomic::{AtomicBool, Ordering};

use coroner_unwind::{Aarch64, AddressRange, Architecture, RangeTable, RegisterError, Registration, Row, Rule, X86_64};

fn row(offset: i32) -> Rule {
    Rule::Row(Row::new(7, offset))
}

#[test]
fn registered_rules_are_returned_unchanged() {
    let table = RangeTable::<8>::new();
    let all = <Aarch64 as Architecture>::SAVED;
    let full = all.iter().zip(1..).try_fold(Row::new(31, -0x1234_5678), |row, (number, place)| {
        row.with_saved::<Aarch64>(*number, if place % 2 == 0 { place * -8 } else { place * 0x3ff0 })
    });
    let rules = [
        Rule::Row(Row::frame_record_at::<Aarch64>(31, 0xd0)),
        Rule::Row(Row::frame_record_at::<X86_64>(7, 0xd0)),
        Rule::Row(full.unwrap()),
        Rule::FrameRecord,
        Rule::Outermost,
    ];
    for (index, rule) in rules.iter().enumerate() {
        let start = 0x1_0000 * (index as u64 + 1);
        table.register((start..start + 0x10).into(), rule).unwrap();
        for address in [start, start + 0xf] {
            let found = table.find(address).unwrap();
            assert_eq!((found.rule, found.range), (*rule, (start..start + 0x10).into()));
        }
        assert!(table.find(start - 1).is_none() && table.find(start + 0x10).is_none());
    }
}

#[test]
fn invalid_ranges_and_rules_are_rejected() {
    let table = RangeTable::<2>::new();
    for (start, end) in [(0x5000, 0x5000), (0x6000, 0x5000), (0, 0x9000), (0xffff_8000_0000_0000, u64::MAX)] {
        assert_eq!(table.register(AddressRange { start, end }, &row(8)), Err(RegisterError::BadRange));
    }
    let program = Rule::Program(coroner_unwind::Program::new(0x1000, false));
    assert_eq!(table.register((0x5000..0x6000).into(), &program), Err(RegisterError::BadRule));
    let first = table.register((0x5000..0x6000).into(), &row(8)).unwrap();
    table.register((0x6000..0x7000).into(), &row(16)).unwrap();
    assert_eq!(table.register((0x7000..0x8000).into(), &row(24)), Err(RegisterError::Full));
    assert!(table.unregister(first));
    assert!(!table.unregister(first), "it is gone");
    let again = table.register((0x5000..0x6000).into(), &row(32)).unwrap();
    assert_ne!(again, first);
    assert!(!table.unregister(first), "the slot contains a newer range");
    assert_eq!(table.find(0x5000).unwrap().rule, row(32));
    assert_eq!(Registration::from_number(again.to_number()), Some(again));
    assert!(!table.unregister(Registration::from_number(0xffff).unwrap()));
}

#[test]
fn the_shortest_range_wins_and_each_change_increments_the_generation() {
    let table = RangeTable::<4>::new();
    let mut generations = Vec::from([table.generation()]);
    table.register((0x1000..0x9000).into(), &row(8)).unwrap();
    generations.push(table.generation());
    let inner = table.register((0x2000..0x3000).into(), &row(16)).unwrap();
    generations.push(table.generation());
    table.register((0x1000..0x8000).into(), &row(24)).unwrap();
    assert_eq!(table.find(0x2800).unwrap().rule, row(16));
    assert_eq!(table.find(0x3000).unwrap().rule, row(24));
    assert_eq!(table.find(0x8000).unwrap().rule, row(8));
    table.unregister(inner);
    generations.push(table.generation());
    assert_eq!(table.find(0x2800).unwrap().rule, row(24));
    generations.sort_unstable();
    generations.dedup();
    assert_eq!(generations.len(), 4);
}

/// A reader sees a range as registered, or none: never one range's addresses with another's rule.
#[test]
fn a_reader_never_sees_a_partly_written_range() {
    static TABLE: RangeTable<2> = RangeTable::new();
    static DONE: AtomicBool = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..2_u64 {
            scope.spawn(move || {
                for round in 0..200_000_u64 {
                    let start = 0x10_0000 + (round * 2 + writer) % 64 * 0x100;
                    if let Ok(registration) = TABLE.register((start..start + 0x100).into(), &row(start as i32)) {
                        assert!(TABLE.unregister(registration));
                    }
                }
                DONE.store(true, Ordering::Release);
            });
        }
        let mut seen = 0;
        while !DONE.load(Ordering::Acquire) {
            for index in 0..64 {
                let address = 0x10_0000 + index * 0x100;
                if let Some(found) = TABLE.find(address) {
                    assert_eq!((found.range.start, found.rule), (address, row(address as i32)));
                    seen += 1;
                }
            }
        }
        // How many rounds overlap depends on the machine; only the check above matters.
        std::hint::black_box(seen);
    });
}
