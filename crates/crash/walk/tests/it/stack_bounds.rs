//! The bounds of the calling thread's stack.

#![cfg(unix)]

use coroner_walk::stack_bounds;

#[test]
fn a_local_is_on_the_stack_of_every_thread() {
    let check = || {
        let local = 1_u8;
        let at = &raw const local as u64;
        let bounds = stack_bounds();
        assert!(bounds.contains(&at), "{at:x} in {bounds:x?}");
    };
    check();
    std::thread::spawn(check).join().unwrap();
    std::thread::Builder::new().stack_size(64 << 10).spawn(check).unwrap().join().unwrap();
}
