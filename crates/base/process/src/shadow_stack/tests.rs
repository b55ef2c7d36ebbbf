//! Synthetic shadow stacks: few kernels have them.

extern crate std;

use std::vec::Vec;

use super::{SEARCHED, at_signal};
use crate::memory::{Memory, Unreadable};

const BASE: u64 = 0x7f00_0000_1000;

struct Words(Vec<u64>);

impl Memory for Words {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        let place = address.checked_sub(BASE).map(|offset| (offset / 8) as usize);
        let word = place.and_then(|place| self.0.get(place)).ok_or(Unreadable { address })?;
        into.copy_from_slice(&word.to_le_bytes());
        Ok(())
    }
}

/// Returns the shadow stack inside a signal handler.
///
/// It has the handlers' return addresses, the restorer, the word that the kernel pushed for the
/// signal, and the return address of the interrupted code.
fn of_handler(frames: usize) -> Words {
    let mut words = std::vec![0x40_1000; frames];
    let before = BASE + 8 * (frames as u64 + 1);
    words.extend([before | 1 << 63, 0x40_2000, 0x40_3000]);
    Words(words)
}

#[test]
#[cfg(target_arch = "x86_64")]
fn the_shadow_stack_pointer_before_the_signal_is_found() {
    for frames in [1, 2, 30, SEARCHED as usize - 1] {
        assert_eq!(at_signal(BASE, &mut of_handler(frames)), Some(BASE + 8 * (frames as u64 + 1)), "{frames} frames");
    }
    // The innermost of two signals.
    let mut words = of_handler(3);
    let outer = BASE + 8 * (words.0.len() as u64 + 1);
    words.0.extend([outer | 1 << 63, 0x40_4000]);
    assert_eq!(at_signal(BASE, &mut words), Some(BASE + 32));
}

#[test]
#[cfg(target_arch = "x86_64")]
fn similar_words_are_not_matched() {
    let mut words = of_handler(1);
    // A word for another location, and a restore token (`create_rstor_token`).
    words.0[1] = (BASE + 8) | 1 << 63;
    assert_eq!(at_signal(BASE, &mut words), None);
    words.0[1] = (BASE + 16) | 1;
    assert_eq!(at_signal(BASE, &mut words), None);
}

#[test]
fn no_shadow_stack_or_a_damaged_one() {
    assert_eq!(at_signal(0, &mut of_handler(1)), None);
    assert_eq!(at_signal(BASE + 3, &mut of_handler(1)), None);
    if cfg!(target_arch = "x86_64") {
        assert_eq!(at_signal(BASE, &mut of_handler(SEARCHED as usize)), None, "beyond what is searched");
        assert_eq!(at_signal(BASE, &mut Words(Vec::new())), None);
        assert_eq!(at_signal(u64::MAX - 7, &mut Words(Vec::new())), None);
    }
}
