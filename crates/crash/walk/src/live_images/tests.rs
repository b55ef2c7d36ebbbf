extern crate std;

use core::sync::atomic::AtomicBool;
use std::collections::BTreeSet;

use super::*;

/// Creates a list though nothing has changed.
fn make_another(memory: LiveReader) -> LiveImages {
    while !take_turn() {
        std::thread::yield_now();
    }
    let made = create_exclusively(memory);
    WRITER_PID.store(0, Release);
    made.expect("memory")
}

#[test]
fn only_released_lists_are_reused() {
    // An emulator may copy no memory before an install.
    let Some(memory) = LiveReader::new() else { return };
    let held = make_another(memory);
    let generation = held.0.generation;
    let mut slots = BTreeSet::new();
    for _ in 0..50 {
        let made = make_another(memory);
        assert!(!core::ptr::eq(made.0, held.0));
        assert_eq!(made.identity(), held.identity(), "the images are unchanged");
        slots.insert(core::ptr::from_ref(made.0) as usize);
    }
    assert_eq!(held.0.generation, generation);
    // The other test's threads hold some slots.
    assert!(slots.len() < 12, "{} slots", slots.len());
}

#[test]
fn threads_see_complete_lists_while_others_are_created() {
    let Some(memory) = LiveReader::new() else { return };
    let stop = AtomicBool::new(false);
    let here = make_another as *const () as u64;
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    // A thread that waits too long for another gets no list.
                    let Some(images) = LiveImages::current(memory) else { continue };
                    let (generation, count) = (images.0.generation, images.table().len());
                    assert!(images.find(here).is_some_and(|image| image.is_executable(here)));
                    assert_eq!((images.0.generation, images.table().len()), (generation, count));
                }
            });
        }
        for _ in 0..500 {
            drop(make_another(memory));
        }
        stop.store(true, Relaxed);
    });
}
