//! Descriptors that stay open, and paths: the files that crash time uses.
#![cfg(unix)]

use coroner_process::descriptor::OwnedDescriptor;
use coroner_process::files::{Descriptor, File, open, status};
use coroner_process::path::Path;

#[test]
fn a_descriptor_is_used_only_while_it_is_the_same_file() {
    let open = |path| open(Descriptor::WORKING_DIRECTORY, path, libc::O_RDONLY, 0).unwrap();
    let owned = OwnedDescriptor::adopt(open(c"/dev/null")).unwrap();
    let number = owned.verified().unwrap().number();
    assert!(number > 100, "{number}");
    let other = open(c"/dev/zero");
    // SAFETY: no memory is touched.
    assert_eq!(unsafe { libc::dup2(other.number(), number) }, number);
    assert!(owned.verified().is_none());
    owned.close();
    // SAFETY: this test's own.
    let file = unsafe { File::from_number(number) };
    assert!(status(&file).is_ok(), "what the app put there stays open");
}

/// A thousand alternate stacks take few of the mappings that a process may have.
#[cfg(target_os = "linux")]
#[test]
fn the_guards_of_stacks_take_few_mappings() {
    use coroner_process::memory::is_accessible;
    use coroner_process::stack::{Stack, page_size};
    let mappings = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    let before = mappings();
    let stacks: Vec<_> = (0..1000).map(|_| Stack::map(64 << 10, page_size(), 4096).unwrap()).collect();
    let taken = mappings().saturating_sub(before);
    for stack in stacks {
        assert!(is_accessible(stack.base() as u64, true));
        assert!(!is_accessible(stack.base() as u64 - 1, false));
        stack.unmap();
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let version: Vec<u32> = release.split(['.', '-']).map_while(|part| part.parse().ok()).collect();
    if version >= vec![6, 13] && !crate::support::is_emulated() {
        assert!(taken < 100, "{taken} mappings");
    }
}

#[test]
fn paths_are_built_and_stay_terminated() {
    let path = Path::new().push(b"runs/").push_hex(&[0xab; 16]).push(b"/report-").push_decimal(2);
    assert_eq!(path.as_c_str(), c"runs/abababababababababababababababab/report-2");
    assert_eq!(Path::new().push_decimal(0).as_c_str(), c"0");
    assert_eq!(Path::new().push_decimal(u32::MAX).as_c_str(), c"4294967295");
    assert_eq!(Path::new().push(&[b'a'; 500]).as_c_str().count_bytes(), 127);
}
