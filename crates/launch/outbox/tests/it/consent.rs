//! The user's decision is respected, even if files are damaged.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::mpsc;
use std::thread;
use std::time::SystemTime;

use coroner_outbox::{Outbox, Pushed};

#[test]
fn a_refusal_outlives_damage() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Outbox::open(folder.path(), "message").unwrap();
    let outbox = open();
    assert_eq!(outbox.consent().unwrap(), None);
    for given in [false, true, false] {
        outbox.set_consent(given).unwrap();
        assert_eq!(open().consent().unwrap(), Some(given));
    }
    fs::write(folder.path().join("state.json"), "{\"done\":").unwrap();
    assert!(open().is_refused().unwrap());
    let file = folder.path().join("consent");
    for damaged in ["", "giv", "given\nindeed", "\0\0\0\0\0\0"] {
        fs::write(&file, damaged).unwrap();
        assert!(outbox.is_refused().unwrap(), "{damaged:?}");
    }
    let elsewhere = folder.path().join("elsewhere");
    fs::write(&elsewhere, "given\n").unwrap();
    fs::remove_file(&file).unwrap();
    symlink(&elsewhere, &file).unwrap();
    assert!(outbox.is_refused().unwrap(), "a link is not followed");
    outbox.set_consent(true).unwrap();
    fs::remove_file(&elsewhere).unwrap();
    assert_eq!(outbox.consent().unwrap(), Some(true));
    fs::remove_file(&file).unwrap();
    fs::create_dir_all(file.join("inside")).unwrap();
    assert!(outbox.is_refused().unwrap(), "a directory says nothing");
    outbox.set_consent(true).unwrap();
    assert_eq!(outbox.consent().unwrap(), Some(true));
}

#[test]
fn consent_that_is_being_written_is_not_a_refusal() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..300 {
        let outbox = Outbox::open(&folder.path().join(round.to_string()), "message").unwrap();
        let reader = outbox.clone();
        let reads = thread::spawn(move || {
            let mut printed = Vec::new();
            while printed.last() != Some(&Some(true)) {
                printed.push(reader.consent().unwrap());
            }
            printed
        });
        outbox.set_consent(true).unwrap();
        let printed = reads.join().unwrap();
        assert!(!printed.contains(&Some(false)), "round {round}: nobody has refused");
    }
}

#[test]
fn messages_beside_a_refusal_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..200 {
        let outbox = Outbox::open(&folder.path().join(round.to_string()), "message").unwrap();
        // A process that was killed while it wrote a message.
        fs::write(outbox.path().join("queue/.new-x"), "a part").unwrap();
        let writer = outbox.clone();
        let (begun, begins) = mpsc::channel();
        let writes = thread::spawn(move || {
            let mut number = 0;
            loop {
                match writer.push(&format!("{number:032x}"), "", b"a message", SystemTime::now()) {
                    Ok(Pushed::Refused) => break,
                    // Its unfinished file was removed beside it.
                    Ok(_) | Err(_) => number += 1,
                }
                let _ = begun.send(());
            }
        });
        begins.recv().unwrap();
        outbox.set_consent(false).unwrap();
        outbox.clear().unwrap();
        writes.join().unwrap();
        let left: Vec<_> = fs::read_dir(outbox.path().join("queue")).unwrap().collect();
        assert!(left.is_empty(), "round {round}: {left:?}");
    }
}
