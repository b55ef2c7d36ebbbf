//! The encoder: its bytes are those of RFC 8949, and items that don't fit are left out.

use crate::common::Random;
use coroner_report::wire::Encoder;

fn encoded(write: impl FnOnce(&mut Encoder<'_>)) -> Vec<u8> {
    let mut buffer = [0; 300];
    let mut encoder = Encoder::new(&mut buffer);
    write(&mut encoder);
    assert!(!encoder.overflowed());
    encoder.written().to_vec()
}

#[test]
fn rfc_8949_examples_are_encoded() {
    // RFC 8949, appendix A.
    for (value, bytes) in [
        (0, &[0x00][..]),
        (1, &[0x01]),
        (10, &[0x0A]),
        (23, &[0x17]),
        (24, &[0x18, 0x18]),
        (25, &[0x18, 0x19]),
        (100, &[0x18, 0x64]),
        (1000, &[0x19, 0x03, 0xE8]),
        (1_000_000, &[0x1A, 0x00, 0x0F, 0x42, 0x40]),
        (1_000_000_000_000, &[0x1B, 0x00, 0x00, 0x00, 0xE8, 0xD4, 0xA5, 0x10, 0x00]),
        (u64::MAX, &[0x1B, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]),
    ] {
        assert_eq!(encoded(|encoder| encoder.uint(value)), bytes);
    }
    for (value, bytes) in [
        (-1, &[0x20][..]),
        (-10, &[0x29]),
        (-100, &[0x38, 0x63]),
        (-1000, &[0x39, 0x03, 0xE7]),
        (100, &[0x18, 0x64]),
        (i64::MIN, &[0x3B, 0x7F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]),
    ] {
        assert_eq!(encoded(|encoder| encoder.int(value)), bytes);
    }
    assert_eq!(encoded(|encoder| encoder.bool(false)), [0xF4]);
    assert_eq!(encoded(|encoder| encoder.bool(true)), [0xF5]);
    assert_eq!(encoded(|encoder| encoder.optional_uint(None)), [0xF6]);
    assert_eq!(encoded(|encoder| encoder.bytes(&[1, 2, 3, 4])), [0x44, 1, 2, 3, 4]);
    assert_eq!(encoded(|encoder| encoder.text(b"")), [0x60]);
    assert_eq!(encoded(|encoder| encoder.text(b"IETF")), [0x64, 0x49, 0x45, 0x54, 0x46]);
    assert_eq!(encoded(|encoder| encoder.array(0)), [0x80]);
    assert_eq!(encoded(|encoder| encoder.map(0)), [0xA0]);
    assert_eq!(encoded(|encoder| encoder.tag(55799)), [0xD9, 0xD9, 0xF7]);
    let nested = encoded(|encoder| {
        encoder.begin_array();
        encoder.uint(1);
        encoder.array(2);
        encoder.uint(2);
        encoder.uint(3);
        encoder.begin_array();
        encoder.uint(4);
        encoder.uint(5);
        encoder.end();
        encoder.end();
    });
    assert_eq!(nested, [0x9F, 0x01, 0x82, 0x02, 0x03, 0x9F, 0x04, 0x05, 0xFF, 0xFF]);
}

/// Returns the text that bytes become, as read by minicbor.
fn text(bytes: &[u8]) -> String {
    let mut buffer = vec![0; 3 * bytes.len() + 10];
    let mut encoder = Encoder::new(&mut buffer);
    encoder.text(bytes);
    assert!(!encoder.overflowed());
    let mut decoder = minicbor::Decoder::new(encoder.written());
    let text = decoder.str().expect("UTF-8").to_owned();
    assert_eq!(decoder.position(), encoder.position());
    text
}

#[test]
fn invalid_utf_8_is_replaced_like_in_the_standard_library() {
    for bytes in [
        &b"plain"[..],
        "äöü €uro 𝄞".as_bytes(),
        b"\xFF\xFE",
        b"cut \xE2\x82",
        b"cut \xF0\x9D\x84",
        b"overlong \xC0\xAF \xE0\x80\xAF",
        b"surrogate \xED\xA0\x80",
        b"beyond \xF4\x90\x80\x80",
        b"\x80 alone",
        b"\xE2\x28\xA1",
    ] {
        assert_eq!(text(bytes), String::from_utf8_lossy(bytes));
    }
    let mut random = Random(1);
    for _ in 0..20_000 {
        let len = random.below(40);
        let mut bytes = random.bytes(len);
        // Mostly bytes that nearly make a character.
        for byte in &mut bytes {
            *byte = [*byte, *byte | 0x80, 0xE2, 0x82, 0xAC, 0xF0, b'a', 0xED][random.below(8)];
        }
        assert_eq!(text(&bytes), String::from_utf8_lossy(&bytes), "{bytes:X?}");
    }
    // At the widths of the head.
    for len in [22, 23, 24, 7, 8, 85, 86, 254, 255, 256, 257, 5000] {
        for bytes in [vec![b'x'; len], vec![0xFF; len]] {
            assert_eq!(text(&bytes), String::from_utf8_lossy(&bytes));
        }
    }
}

#[test]
fn text_is_truncated_at_a_character() {
    let long = "€".repeat(40_000);
    let cut = text(long.as_bytes());
    assert_eq!(cut.len(), 65_535);
    assert!(long.starts_with(&cut));
    assert_eq!(text(&vec![b'x'; 70_000]).len(), 65_535);
    assert_eq!(text(&vec![0xFF; 30_000]).chars().count(), 21_845);
}

/// Writes a random document; each element as a whole or not at all.
fn document(encoder: &mut Encoder<'_>, random: &mut Random, depth: usize) {
    for _ in 0..random.below(6) {
        let choice = random.below(if depth < 4 { 9 } else { 6 });
        let number = random.next() >> random.below(64);
        let len = random.below(30);
        let bytes = random.bytes(len);
        encoder.element(|encoder| match choice {
            0 => encoder.uint(number),
            1 => encoder.int(number.cast_signed()),
            2 => encoder.bytes(&bytes),
            3 | 4 => encoder.text(&bytes),
            5 => encoder.optional_uint(None),
            6 => {
                encoder.begin_array();
                document(encoder, random, depth + 1);
                encoder.end();
            }
            7 => {
                encoder.begin_map();
                encoder.element(|encoder| {
                    encoder.uint(number);
                    encoder.begin_array();
                    document(encoder, random, depth + 1);
                    encoder.end();
                });
                encoder.end();
            }
            _ => {
                encoder.array(2);
                encoder.bool(true);
                encoder.uint(number);
            }
        });
    }
}

#[test]
fn output_is_well_formed_in_a_buffer_of_any_size() {
    for seed in 1..200 {
        let whole = {
            let mut buffer = vec![0; 1 << 16];
            let mut encoder = Encoder::new(&mut buffer);
            encoder.begin_array();
            document(&mut encoder, &mut Random(seed), 0);
            encoder.end();
            assert!(!encoder.overflowed());
            encoder.written().to_vec()
        };
        for size in 0..whole.len() + 3 {
            // Nothing is written beyond the buffer.
            let mut buffer = vec![0xAA; size + 16];
            let (inside, outside) = buffer.split_at_mut(size);
            let mut encoder = Encoder::new(inside);
            encoder.begin_array();
            if encoder.overflowed() {
                assert!(size < 2);
                continue;
            }
            document(&mut encoder, &mut Random(seed), 0);
            encoder.end();
            assert!(!encoder.overflowed());
            let mut decoder = minicbor::Decoder::new(encoder.written());
            decoder.skip().unwrap_or_else(|error| panic!("seed {seed}, {size} bytes: {error}"));
            assert_eq!(decoder.position(), encoder.position());
            assert!(outside.iter().all(|byte| *byte == 0xAA));
            if size >= whole.len() {
                assert_eq!(encoder.written(), whole);
            }
        }
    }
}

#[test]
fn overflow_stays_until_it_is_rolled_back() {
    let mut buffer = [0; 8];
    let mut encoder = Encoder::new(&mut buffer);
    encoder.begin_array();
    encoder.uint(1);
    let mark = encoder.mark();
    encoder.text(b"too long for this");
    assert!(encoder.overflowed());
    encoder.uint(2);
    assert!(!encoder.element(|encoder| encoder.uint(3)));
    assert_eq!(encoder.position(), 2, "nothing is written after an overflow");
    encoder.rollback(mark);
    assert!(!encoder.overflowed());
    assert!(!encoder.element(|encoder| encoder.bytes(&[0; 6])));
    assert!(encoder.element(|encoder| encoder.bytes(&[0; 4])));
    assert_eq!(encoder.remaining(), 0);
    encoder.end();
    encoder.end();
    assert_eq!(encoder.written(), [0x9F, 0x01, 0x44, 0, 0, 0, 0, 0xFF]);
}
