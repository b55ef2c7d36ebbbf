use super::*;

#[test]
fn places_are_sorted_and_unique() {
    let mut places = [Place::default(); 200];
    let mut state = 12_345_u64;
    for place in &mut places {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        place.range.start = state >> 58;
    }
    sort(&mut places);
    assert!(places.is_sorted_by_key(|place| place.range.start));
    let kept = remove_doubles(&mut places);
    assert!(kept <= 64 && places[..kept].windows(2).all(|two| two[0].range.start < two[1].range.start));
    for count in 0..4 {
        sort(&mut places[..count]);
    }
    assert_eq!(remove_doubles(&mut []), 0);
}
