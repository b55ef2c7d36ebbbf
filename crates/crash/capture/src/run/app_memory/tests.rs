extern crate std;

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::boxed::Box;
use std::vec;

use super::{MAX_BYTES, call_back, set_callback};

static CALLS: AtomicU32 = AtomicU32::new(0);
static MIXED: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn with<const CONTEXT: usize>(context: *mut c_void, _: *mut u8, _: usize) -> usize {
    CALLS.fetch_add(1, Ordering::Relaxed);
    MIXED.fetch_add(u32::from(context as usize != CONTEXT), Ordering::Relaxed);
    0
}

/// Threads that set callbacks at the same time never mix one's function with the other's context.
#[test]
fn a_callback_has_its_own_context() {
    let (ends, mut payload) = (&*Box::leak(Box::new(AtomicBool::new(false))), vec![0; MAX_BYTES + 1024]);
    std::thread::scope(|scope| {
        // SAFETY: the functions write nothing, and their contexts are numbers.
        unsafe {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    set_callback(Some(with::<1>), core::ptr::without_provenance_mut(1));
                }
            });
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    set_callback(Some(with::<2>), core::ptr::without_provenance_mut(2));
                }
            });
        }
        while CALLS.load(Ordering::Relaxed) < 200_000 {
            call_back(&mut payload);
        }
        ends.store(true, Ordering::Relaxed);
    });
    assert_eq!(MIXED.load(Ordering::Relaxed), 0);
}
