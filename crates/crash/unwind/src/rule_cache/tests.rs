use super::*;
use crate::arch::{Aarch64, X86_64};

extern crate std;
use std::boxed::Box;

fn rule(number: i32) -> FoundRule {
    FoundRule { rule: Rule::Row(Row::new(7, number)), found: Found::Cfi, signal_trampoline: false }
}

#[test]
fn a_conflict_replaces_only_the_oldest_rule() {
    let mut cache = Box::new(RuleCache::new());
    let kind = AddressKind::ReturnAddress;
    // Five addresses in one set.
    let mut clash = (1..).map(|n| 0x40_0000 + n * 5).filter(|pc| set_and_tag(*pc).0 == 7);
    let pcs: [u64; 5] = std::array::from_fn(|_| clash.next().unwrap());
    for (number, pc) in pcs[..4].iter().enumerate() {
        cache.put::<X86_64>(*pc, kind, &rule(number as i32));
    }
    for (number, pc) in pcs[..4].iter().enumerate() {
        assert_eq!(cache.at(cache.find(*pc, kind).unwrap()), rule(number as i32));
    }
    cache.put::<X86_64>(pcs[4], kind, &rule(4));
    assert_eq!(cache.find(pcs[0], kind), None);
    assert!(pcs[1..].iter().all(|pc| cache.find(*pc, kind).is_some()));
    assert_eq!(cache.find(pcs[1], AddressKind::InstructionPointer), None);
    cache.clear();
    assert!(pcs.iter().all(|pc| cache.find(*pc, kind).is_none()));
    cache.put::<X86_64>(pcs[0], kind, &rule(0));
    assert!(cache.find(pcs[0], kind).is_some());
    cache.enter(1);
    assert!(pcs.iter().all(|pc| cache.find(*pc, kind).is_none()));
}

#[test]
fn an_empty_entry_is_not_a_rule_for_address_0() {
    let cache = Box::new(RuleCache::new());
    assert_eq!(cache.find(0, AddressKind::ReturnAddress), None);
    assert!(!cache.is_rule_for(EntryIndex(0), 0, cache.current()));
}

#[test]
fn epochs_do_not_repeat() {
    let mut cache = Box::new(RuleCache::new());
    let kind = AddressKind::ReturnAddress;
    cache.put::<X86_64>(0x1000, kind, &rule(1));
    cache.epoch = u32::MAX - 1;
    cache.put::<X86_64>(0x2000, kind, &rule(2));
    cache.clear();
    assert_eq!((cache.find(0x1000, kind), cache.find(0x2000, kind)), (None, None));
    cache.put::<X86_64>(0x2000, kind, &rule(2));
    assert!(cache.find(0x2000, kind).is_some());
}

#[test]
fn callers_are_remembered() {
    let mut cache = Box::new(RuleCache::new());
    let kind = AddressKind::ReturnAddress;
    let [callee, caller] = [0x1000, 0x2000].map(|pc| cache.put::<X86_64>(pc, kind, &rule(pc as i32)));
    let current = cache.current();
    assert!(!cache.is_rule_for(cache.entry(callee).caller, 0x2000, current));
    cache.set_caller(callee, caller);
    assert!(cache.is_rule_for(cache.entry(callee).caller, 0x2000, current));
    assert!(!cache.is_rule_for(cache.entry(callee).caller, 0x3000, current));
    cache.clear();
    assert!(!cache.is_rule_for(cache.entry(callee).caller, 0x2000, cache.current()));
}

#[test]
fn a_step_agrees_with_its_row_or_is_absent() {
    let step = |row: Option<Row>, signal_trampoline| {
        Step::from_rule::<Aarch64>(&FoundRule { rule: Rule::Row(row.unwrap()), found: Found::Cfi, signal_trampoline })
    };
    let saved = |row: Row, fp, lr| row.with_saved::<Aarch64>(29, fp).and_then(|row| row.with_saved::<Aarch64>(30, lr));
    let frame = |base, cfa| Step { base, cfa, return_address: -1, frame_pointer: -2, saved: 1 << 10 };
    assert_eq!(step(saved(Row::new(31, 48), -16, -8), false), frame(Base::StackPointer, 6));
    assert_eq!(step(saved(Row::new(29, 16), -16, -8), false), frame(Base::FramePointer, 2));
    assert_eq!(step(saved(Row::new(29, 48), -48, -40), false).base, Base::FramePointer);
    assert_eq!(step(saved(Row::new(29, 48), -16, -8), false).base, Base::Other);
    let no_fp = Row::new(31, 16).with_saved::<Aarch64>(30, -16);
    let without = Step { base: Base::StackPointer, cfa: 2, return_address: -2, frame_pointer: 0, saved: 0 };
    assert_eq!(step(no_fp, false), without);
    // A leaf; another register; no progress; not in words; too far; a frame pointer at the caller's
    // stack pointer; signals.
    for row in [
        Some(Row::new(31, 16)),
        saved(Row::new(28, 48), -16, -8),
        saved(Row::new(31, 0), -16, -8),
        saved(Row::new(31, 44), -16, -8),
        saved(Row::new(31, 1 << 20), -16, -8),
        saved(Row::new(31, 48), 0, -8),
    ] {
        assert_eq!(step(row, false).base, Base::Other, "{row:?}");
    }
    assert_eq!(step(saved(Row::new(31, 48), -16, -8), true).base, Base::Other);
}
