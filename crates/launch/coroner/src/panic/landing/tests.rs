use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

#[inline(never)]
fn here() -> Landing {
    std::hint::black_box(of_this_panic())
}

// Only called by Rust; what matters is that no panic leaves it.
#[allow(improper_ctypes_definitions)]
extern "C" fn cannot_unwind(work: &dyn Fn() -> Landing) -> Landing {
    std::hint::black_box(work())
}

#[test]
fn landings() {
    // libtest itself catches its tests' panics, so a panic here is caught, and not at the top.
    assert_eq!(here(), Landing::Caught);
    let on_a_thread = std::thread::spawn(here).join().unwrap();
    assert_eq!(on_a_thread, Landing::Top);
    let caught = std::thread::spawn(|| catch_unwind(AssertUnwindSafe(here)).unwrap()).join().unwrap();
    assert_eq!(caught, Landing::Caught);
    let refused = std::thread::spawn(|| cannot_unwind(&here)).join().unwrap();
    assert_eq!(refused, Landing::CannotUnwind);
}
