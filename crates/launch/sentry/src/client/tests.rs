use super::is_sampled;

#[test]
fn sampling_depends_only_on_the_id() {
    let id = |first: u32| format!("{first:08x}{}", "0".repeat(24));
    assert!(is_sampled(&id(u32::MAX), 1.0) && !is_sampled(&id(0), 0.0));
    assert!(is_sampled(&id(0x3fff_ffff), 0.25) && !is_sampled(&id(0x4000_0000), 0.25));
}
