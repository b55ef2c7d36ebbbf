use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

fn scratch() -> (tempfile::TempDir, Directory) {
    let folder = tempfile::tempdir().unwrap();
    let directory = Directory::create(&folder.path().join("a/b")).unwrap();
    (folder, directory)
}

#[test]
fn created_files_are_private_to_the_owner() {
    let (_folder, directory) = scratch();
    directory.write_atomically("file".as_ref(), b"bytes").unwrap();
    let inner = directory.create_subdirectory("inner".as_ref()).unwrap();
    let paths = [directory.path().to_owned(), inner.path().to_owned(), directory.path().join("file")];
    for path in paths {
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{path:?} {mode:o}");
    }
}

#[test]
fn links_are_not_followed_when_reading_writing_or_removing() {
    let (folder, directory) = scratch();
    let outside = folder.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("precious"), b"kept").unwrap();
    symlink(outside.join("precious"), directory.path().join("file")).unwrap();
    symlink(&outside, directory.path().join("folder")).unwrap();

    assert!(directory.read("file".as_ref(), 100).is_err());
    assert!(directory.subdirectory("folder".as_ref()).is_err());
    assert!(directory.create_subdirectory("folder".as_ref()).is_err());
    assert!(Directory::open(&directory.path().join("folder")).is_err());

    directory.write_atomically("file".as_ref(), b"new").unwrap();
    assert_eq!(directory.read("file".as_ref(), 100).unwrap(), b"new");
    directory.remove_tree("folder".as_ref()).unwrap();
    assert_eq!(std::fs::read(outside.join("precious")).unwrap(), b"kept");
}

#[test]
fn only_old_temporary_files_are_cleared() {
    let (_folder, directory) = scratch();
    for (name, minutes) in [(".old.1.new", 90), (".young.1.new", 10), ("old.new", 90), (".old", 90)] {
        directory.write_atomically(name.as_ref(), b"").unwrap();
        let file = directory.file(name.as_ref(), true).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_mins(minutes)).unwrap();
    }
    directory.clear_temporaries().unwrap();
    assert_eq!(directory.names().unwrap(), [".old", ".young.1.new", "old.new"]);
}

#[test]
fn names_that_lead_elsewhere_are_rejected() {
    let (_folder, directory) = scratch();
    for name in ["", ".", "..", "a/b", "../a", "/etc/passwd"] {
        assert!(directory.read(name.as_ref(), 100).is_err(), "{name}");
        assert!(directory.remove_tree(name.as_ref()).is_err(), "{name}");
        assert!(directory.write_atomically(name.as_ref(), b"").is_err(), "{name}");
    }
}

#[test]
fn a_pipe_is_an_error_and_does_not_block() {
    let (_folder, directory) = scratch();
    let path = std::ffi::CString::new(directory.path().join("pipe").into_os_string().into_encoded_bytes()).unwrap();
    // SAFETY: the path ends in NUL.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o700) }, 0);
    let error = directory.read("pipe".as_ref(), 100).unwrap_err();
    assert!(error.to_string().contains("named pipe"), "{error}");
}

#[cfg(any(target_os = "linux", target_os = "android"))]
#[test]
fn zeros_at_the_end_take_no_space() {
    let (_folder, directory) = scratch();
    let mut bytes = vec![7; 100_000];
    bytes.resize(1 << 20, 0);
    directory.write_atomically("file".as_ref(), &bytes).unwrap();
    let before = directory.status_of("file".as_ref()).unwrap();
    // Some file systems have no holes.
    if directory.release_zeros("file".as_ref()).is_ok() {
        let after = directory.status_of("file".as_ref()).unwrap();
        assert!(after.length == before.length && after.disk_bytes <= 1 << 18, "{after:?}");
    }
    assert_eq!(directory.read("file".as_ref(), 1 << 20).unwrap(), bytes);
}

#[test]
fn a_file_longer_than_the_limit_is_an_error() {
    let (_folder, directory) = scratch();
    directory.write_atomically("long".as_ref(), &[0; 101]).unwrap();
    let error = directory.read("long".as_ref(), 100).unwrap_err();
    assert!(error.to_string().contains("101 bytes"), "{error}");
}
