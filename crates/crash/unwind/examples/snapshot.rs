//! Walks saved registers and memory without accessing the process, as a report's reader does on
//! another machine and possibly another architecture.
//!
//! `cargo run -p coroner-unwind --example snapshot`

use coroner_process::memory::{Memory, Snapshot, SnapshotRange};
use coroner_process::registers::Registers;
use coroner_unwind::{AddressRange, Image, Options, RuleCache, Walker};
use coroner_unwind_test_support::{Loaded, Native, ThisProcess, capture_here};

/// A thread's saved state: plain data that could be in a file.
struct Saved {
    registers: Registers,
    ranges: Vec<(u64, Vec<u8>)>,
    images: Vec<Image>,
}

/// Saves the current thread's registers, the memory above its stack pointer, and each image's
/// unwind sections (which a reader would take from the image's file).
#[inline(never)]
fn save() -> Saved {
    let loaded = Loaded::now();
    let registers = capture_here();
    let mut memory = ThisProcess::default();
    let mut ranges = Vec::new();
    let mut save = |range: AddressRange| {
        let mut bytes = Vec::new();
        let mut page = vec![0; 4096];
        let mut at = range.start & !0xfff;
        while at < range.end && memory.read(at, &mut page).is_ok() {
            bytes.extend_from_slice(&page);
            at += 4096;
        }
        ranges.push((range.start & !0xfff, bytes));
    };
    save((registers.sp()..registers.sp() + (1 << 20)).into());
    for image in &loaded.images {
        // .eh_frame follows its search table.
        let start = image.eh_frame_hdr.start;
        save((start..start + (8 << 20)).into());
        save(image.text);
    }
    Saved { registers, ranges, images: loaded.images }
}

fn main() {
    let saved = save();
    let ranges: Vec<SnapshotRange<'_>> =
        saved.ranges.iter().map(|(address, bytes)| SnapshotRange { address: *address, bytes }).collect();
    let memory = Snapshot { ranges: &ranges };
    let mut cache = Box::new(RuleCache::new());
    let mut walker =
        Walker::<Native, _, _>::new(&saved.registers, memory, &saved.images[..], &mut cache, Options::default());
    while let Some(frame) = walker.next_frame() {
        println!("{:#014x} sp {:#x} {}", frame.lookup_address(), frame.sp, frame.found.name());
    }
    println!("{:?}, {:?}", walker.end(), walker.problem());
}
