use super::*;

/// Items in a reproducible random order (a linear congruential generator).
fn items(length: u32) -> impl Iterator<Item = u32> {
    (0..length).scan(length, |state, _| {
        *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        Some(*state >> 20)
    })
}

#[test]
fn items_are_in_order_whatever_their_number() {
    let mut room = [0_u32; 257];
    for length in 0..=257_u32 {
        let sorted = &mut room[..length as usize];
        sorted.iter_mut().zip(items(length)).for_each(|(place, item)| *place = item);
        heap_sort(sorted, |first, second| first > second);
        assert!(sorted.is_sorted_by(|first, second| first >= second), "{sorted:?}");
        let sum = |items: &mut dyn Iterator<Item = u32>| items.map(u64::from).sum::<u64>();
        assert_eq!(sum(&mut sorted.iter().copied()), sum(&mut items(length)), "of {length}");
    }
}
