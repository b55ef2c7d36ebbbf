use super::*;

#[test]
fn a_cache_has_one_owner_at_a_time() {
    let claimed: [_; MAX_WALKS] = core::array::from_fn(|_| claim().expect("a free cache"));
    for (index, one) in claimed.iter().enumerate() {
        assert!(claimed.iter().skip(index + 1).all(|other| !core::ptr::eq(one.0, other.0)));
    }
    assert!(claim().is_none(), "sixteen walks are in progress");
    drop(claimed);
    assert!(claim().is_some());
}
