//! Entries in an outbox directory that the outbox did not create.

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
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

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Changes the owner. Returns `false` without the right to.
fn give_away(path: &Path) -> bool {
    std::os::unix::fs::lchown(path, Some(4711), None).is_ok()
}

#[test]
fn a_directory_that_others_planted_is_renamed() {
    for place in ["sentry", "sentry/queue", "sentry/given-up"] {
        for form in ["link", "file", "another user's", "another user's link"] {
            let folder = tempfile::tempdir().unwrap();
            let (place, elsewhere) = (folder.path().join(place), folder.path().join("elsewhere"));
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            fs::create_dir(&elsewhere).unwrap();
            match form {
                "file" => fs::write(&place, "").unwrap(),
                "another user's" => fs::create_dir(&place).unwrap(),
                _ => symlink(&elsewhere, &place).unwrap(),
            }
            if form.starts_with("another") && !give_away(&place) {
                continue;
            }
            let outbox = Outbox::open(&folder.path().join("sentry"), "message").unwrap();
            outbox.push("e1", "", b"a message", NOW).unwrap();
            outbox.set_consent(true).unwrap();
            let metadata = fs::symlink_metadata(&place).unwrap();
            assert_eq!((metadata.is_dir(), metadata.uid()), (true, folder.path().metadata().unwrap().uid()), "{form}");
            assert_eq!(names(&elsewhere), [""; 0], "{form}");
            let aside = format!("{}.untrusted-", place.file_name().unwrap().to_str().unwrap());
            assert!(names(place.parent().unwrap()).iter().any(|name| name.starts_with(&aside)), "{form}");
            let again = Outbox::open(&folder.path().join("sentry"), "message").unwrap();
            assert_eq!(again.queue().unwrap().len(), 1);
        }
    }
}

#[test]
fn write_permission_of_others_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let queue = folder.path().join("queue");
    fs::create_dir(&queue).unwrap();
    for path in [folder.path(), &queue] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    outbox(folder.path());
    for path in [folder.path(), &queue] {
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o755);
    }
}

#[test]
fn files_that_others_may_have_written_are_not_used() {
    let plants: [fn(&Path, &Path) -> bool; 3] = [
        |place, _| give_away(place),
        |place, elsewhere| fs::hard_link(place, elsewhere.join(place.file_name().unwrap())).is_ok(),
        |place, _| fs::set_permissions(place, fs::Permissions::from_mode(0o666)).is_ok(),
    ];
    for (form, plant) in plants.iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let elsewhere = folder.path().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        for name in ["queue", "given-up"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let planted =
            [("consent", "given\n"), ("state.json", "[7]"), ("queue/0000000000001-0-0-e1-0.message", "forged")];
        let mut is_planted = true;
        for (name, content) in planted {
            let place = folder.path().join(name);
            fs::write(&place, content).unwrap();
            is_planted &= plant(&place, &elsewhere);
        }
        // Only root can change a file's owner.
        if !is_planted {
            continue;
        }
        let outbox = outbox(folder.path());
        assert!(outbox.check_consent(true).is_err(), "form {form}");
        assert!(outbox.read_state::<Vec<u32>>().is_empty(), "form {form}");
        for entry in outbox.queue().unwrap() {
            assert!(outbox.read(&entry).is_err(), "form {form}");
        }
        outbox.set_consent(true).unwrap();
        outbox.update(|state: &mut Vec<u32>| state.push(1)).unwrap();
        assert!(outbox.check_consent(true).is_ok(), "form {form}");
        assert_eq!(outbox.read_state::<Vec<u32>>(), [1], "form {form}");
    }
}
