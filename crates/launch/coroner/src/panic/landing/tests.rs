use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

#[inline(never)]
fn here() -> Landing {
    std::hint::black_box(find_landing())
}

// Only called by Rust. `extern "C"` because a panic must not leave it.
#[allow(improper_ctypes_definitions)]
extern "C" fn cannot_unwind(work: &dyn Fn() -> Landing) -> Landing {
    std::hint::black_box(work())
}

#[test]
fn landings() {
    // libtest catches its tests' panics, so a panic here is caught before the top.
    assert_eq!(here(), Landing::Caught);
    let on_a_thread = std::thread::spawn(here).join().unwrap();
    assert_eq!(on_a_thread, Landing::Top);
    let caught = std::thread::spawn(|| catch_unwind(AssertUnwindSafe(here)).unwrap()).join().unwrap();
    assert_eq!(caught, Landing::Caught);
    let refused = std::thread::spawn(|| cannot_unwind(&here)).join().unwrap();
    assert_eq!(refused, Landing::CannotUnwind);
}
