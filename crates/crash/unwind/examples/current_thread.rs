//! Walks the current thread twice: in the second walk all rules are cached.
//!
//! `cargo run -p coroner-unwind --example current_thread`

use coroner_unwind::{Options, RuleCache, Walker};
use coroner_unwind_test_support::{Loaded, Native, ThisProcess, capture_here};

#[inline(never)]
fn inner(cache: &mut RuleCache) {
    // Images are listed once, outside a signal handler, and again after the dynamic linker has
    // loaded something.
    let images = Loaded::now();
    let registers = capture_here();
    for round in ["cold", "warm"] {
        let mut memory = ThisProcess::default();
        let mut walker = Walker::<Native, _, _>::new(&registers, &mut memory, &images, cache, Options::default());
        println!("{round}:");
        while let Some(frame) = walker.next_frame() {
            println!("  {:#014x} sp {:#x} {}", frame.lookup_address(), frame.sp, frame.found.name());
        }
        let end = walker.end();
        println!("  {end:?} after {} reads", memory.reads);
    }
}

fn main() {
    let mut cache = Box::new(RuleCache::new());
    inner(&mut cache);
}
