//! Readers of memory: windows, guarded loads, copies by the kernel.

use std::cell::Cell;

use coroner_process::memory::{
    BLOCK, KernelCopy, LoadGuarded, Memory, Snapshot, SnapshotRange, Unreadable, WINDOW, Windowed,
};

struct Counting<'a>(Snapshot<'a>, &'a Cell<usize>);

impl Memory for Counting<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        self.1.set(self.1.get() + 1);
        self.0.read(address, into)
    }
}

#[test]
fn a_window_is_read_once_and_reads_may_cross_windows() {
    let bytes: [u8; 2 * WINDOW] = core::array::from_fn(|i| (i / 7) as u8);
    let ranges = [SnapshotRange { address: 0x10_000, bytes: &bytes }];
    let reads = Cell::new(0);
    let mut memory = Windowed::<_, 2>::new(Counting(Snapshot { ranges: &ranges }, &reads));
    let mut got = [0; 64];
    let address = 0x10_000 + WINDOW as u64 - 32;
    memory.read(address, &mut got).unwrap();
    assert_eq!(&got[..], &bytes[WINDOW - 32..WINDOW + 32]);
    memory.read_u64(0x10_008).unwrap();
    assert_eq!(reads.get(), 2, "both windows are read once");
    assert_eq!(memory.read_u64(0x12_000 - 4), Err(Unreadable { address: 0x12_000 - 4 }));
    assert_eq!(memory.read_u64(u64::MAX - 3), Err(Unreadable { address: u64::MAX - 3 }));
}

#[test]
fn guarded_loads_of_good_memory() {
    let words = [1_u64, 2, 3];
    let address = words.as_ptr() as u64;
    // SAFETY: the memory is good, so no fault can occur and no handler is needed.
    let mut loads = unsafe { LoadGuarded::new() };
    assert_eq!(loads.read_u64(address), Ok(1));
    assert_eq!(loads.read_pair(address + 8), Ok((2, 3)));
    let mut bytes = [0; 17];
    loads.read(address, &mut bytes).unwrap();
    assert_eq!(bytes[8], 2);
    let text: [u8; BLOCK + 9] = core::array::from_fn(|i| i as u8);
    let mut block = [0; BLOCK];
    loads.read_block(text.as_ptr() as u64 + 9, &mut block).unwrap();
    assert_eq!(&block[..], &text[9..]);
}

#[test]
fn the_kernel_copies_readable_memory_and_rejects_bad_addresses() {
    let Some(mut copy) = KernelCopy::new() else { return };
    let words = [1_u64, 2];
    assert_eq!(copy.read_pair(words.as_ptr() as u64), Ok((1, 2)));
    assert_eq!(copy.read_u64(8), Err(Unreadable { address: 8 }));
}
