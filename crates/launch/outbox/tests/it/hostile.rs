//! Entries in an outbox directory that the outbox did not create.

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, SystemTime};

use coroner_outbox::{Outbox, OutboxLimits, Pushed};

const NOW: SystemTime = SystemTime::UNIX_EPOCH;
const NAME: &str = "0000000000001-0-0-e1-0.message";

fn outbox(folder: &Path) -> Outbox {
    Outbox::open(folder, "message").unwrap()
}

fn pipe(path: &Path) {
    let path = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: a path that ends in a zero.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
}

#[test]
fn a_pipe_or_a_link_in_a_messages_place_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let outbox = outbox(folder.path());
    let place = folder.path().join("queue").join(NAME);
    let elsewhere = folder.path().join("elsewhere");
    fs::write(&elsewhere, "of another program").unwrap();
    for put in
        [|place: &Path, _: &Path| pipe(place), |place: &Path, elsewhere: &Path| symlink(elsewhere, place).unwrap()]
    {
        put(&place, &elsewhere);
        let entry = outbox.queue().unwrap().remove(0);
        let read = outbox.read(&entry);
        assert!(read.is_err(), "{read:?}");
        outbox.give_up(&entry).unwrap();
        outbox.clear().unwrap();
    }
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "of another program");
}

#[test]
fn a_state_that_is_not_a_file_counts_as_empty() {
    for put in [pipe, |place: &Path| fs::create_dir(place).unwrap()] {
        let folder = tempfile::tempdir().unwrap();
        let outbox = outbox(folder.path());
        let state = folder.path().join("state.json");
        put(&state);
        assert!(outbox.read_state::<Vec<u32>>().is_empty());
        outbox.update(|state: &mut Vec<u32>| state.push(1)).unwrap();
        assert_eq!(outbox.read_state::<Vec<u32>>(), [1]);
        assert!(state.metadata().unwrap().is_file());
    }
}

#[test]
fn a_directory_in_a_messages_place_does_not_block() {
    let folder = tempfile::tempdir().unwrap();
    let outbox = outbox(folder.path());
    fs::create_dir_all(folder.path().join("queue").join(NAME).join("deep")).unwrap();
    fs::create_dir_all(folder.path().join("given-up").join(NAME)).unwrap();
    assert_eq!(outbox.push("e2", "", b"a message", NOW + Duration::from_secs(1)).unwrap(), Pushed::Added);
    let limits = OutboxLimits { number: 1, ..OutboxLimits::default() };
    outbox.enforce(&limits, NOW, |_, _| {}).unwrap();
    let left: Vec<String> = outbox.queue().unwrap().into_iter().map(|entry| entry.event_id).collect();
    assert_eq!(left, ["e2"]);
    fs::create_dir(folder.path().join("queue").join(NAME)).unwrap();
    outbox.clear().unwrap();
    assert_eq!((outbox.queue().unwrap().len(), outbox.given_up().unwrap().len()), (0, 0));
}
