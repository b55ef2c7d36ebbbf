use super::*;

const ID: Id = Id([0, 0xff, 0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0, 1, 2, 3, 4, 5, 6]);

/// Returns a stack's addresses, innermost first, with pieces of that size from `first` on.
fn stack(id: Id, first: u64, size: u64) -> Vec<u64> {
    digits(id).iter().map(|digit| first + u64::from(*digit) * size).collect()
}

#[test]
fn an_id_is_read_at_any_address_and_size_of_the_pieces() {
    for (first, size) in [(0x1_0000_4009, 16), (0x1_0480_0054, 32), (0, 1)] {
        let mut frames = stack(ID, first, size);
        assert_eq!(read(&frames), Some(ID));
        // The frames of the wait are below the stack, those of the thread's start above it.
        frames.splice(0..0, [0x7fff_2000_1000, first + 0x1000]);
        frames.extend([first + 0x900, 0x7fff_2000_2000, 0]);
        assert_eq!(read(&frames), Some(ID));
        frames.reverse();
        assert_eq!(read(&frames), Some(ID));
    }
    for byte in 0..=255 {
        assert_eq!(read(&stack(Id([byte; 16]), 0x5000, 16)), Some(Id([byte; 16])));
    }
}

#[test]
fn the_calls_are_the_digits_from_the_outermost() {
    let calls = calls(ID);
    assert_eq!(calls[LENGTH], END);
    let mut digits = digits(ID);
    digits.reverse();
    assert_eq!(calls[..LENGTH], digits);
}

#[test]
fn other_stacks_contain_no_id() {
    let whole = stack(ID, 0x1000, 16);
    for cut in 0..LENGTH {
        let mut frames = whole.clone();
        frames.remove(cut);
        assert_eq!(read(&frames), None, "without {cut}");
        for change in [16, 1, 0x1000] {
            let mut frames = whole.clone();
            frames[cut] += change;
            assert_eq!(read(&frames), None, "{cut} + {change}");
        }
    }
    assert_eq!(read(&[0x1000; LENGTH]), None);
    assert_eq!(read(&[]), None);
}
