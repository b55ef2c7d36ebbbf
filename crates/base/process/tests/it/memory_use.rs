//! The process's memory use, as reported by the system.

use coroner_process::memory_use::{available, used};
use coroner_test_support::isolated;

#[test]
fn what_the_process_takes_is_used() {
    isolated(concat!(module_path!(), "::what_the_process_takes_is_used"), || {
        const SIZE: u64 = 64 << 20;
        let page = coroner_process::stack::page_size() as u32;
        let before = used(page).expect("it is known");
        let taken = std::hint::black_box(vec![1_u8; SIZE as usize]);
        let after = used(page).unwrap();
        assert!(after > before + SIZE / 2, "{before}, then {after}");
        let (_, with_start) = coroner_process::identity::start_and_memory(page);
        assert!(with_start.expect("it is known").abs_diff(after) < SIZE / 4, "{with_start:?}, {after}");
        assert!(available().expect("it is known") > 1 << 20);
        drop(taken);
    });
}
