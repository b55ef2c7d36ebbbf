use super::*;

fn slots<A: Architecture>() {
    for (slot, number) in A::SAVED.iter().enumerate().take(A::SAVED_COUNT) {
        assert_eq!(A::slot_of(*number), Some(slot));
        assert_eq!(A::registers_of_slots(1 << slot), 1 << number);
    }
    assert_eq!(A::SAVED[A::SAVED_COUNT - 1], A::RA);
}

#[test]
fn slots_and_registers_correspond() {
    slots::<X86_64>();
    slots::<Aarch64>();
}
