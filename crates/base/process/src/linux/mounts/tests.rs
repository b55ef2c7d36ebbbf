//! Mounts by their devices.

use super::*;

#[test]
fn the_type_of_a_mount_is_found_by_its_device() {
    let mut line = Line { bytes: [0; LINE], length: 0 };
    b"36 35 0:50 / /mnt/a\\040b rw,noatime shared:7 master:1 - fuse.sshfs host:/ rw"
        .iter()
        .for_each(|byte| line.push(*byte));
    assert_eq!(line.kind_of(50), Some(&b"fuse.sshfs"[..]));
    assert_eq!(line.kind_of(5), None);
}

#[test]
fn an_unmounted_device_may_need_a_server_and_a_block_device_does_not() {
    assert!(!needs_server(8 << 24 | 1));
    assert!(needs_server(0xff_fff0), "a device that is not mounted");
}
