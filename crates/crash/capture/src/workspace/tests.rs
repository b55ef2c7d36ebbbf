extern crate std;
use std::boxed::Box;
use std::format;

use super::*;

#[test]
fn all_zero_is_empty() {
    let workspace = Workspace::map().unwrap();
    // SAFETY: created above, and used by nobody else.
    let workspace = unsafe { &*workspace };
    // Not `assert_eq!`: they are long.
    assert!(format!("{:?}", workspace.cache) == format!("{:?}", Box::new(RuleCache::new())));
    assert!(workspace.fault.is_none() && workspace.images.is_none() && workspace.names.is_none());
}
