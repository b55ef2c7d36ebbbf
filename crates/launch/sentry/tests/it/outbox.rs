//! The outbox on the disk.

use std::collections::HashSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, io};

use coroner_sentry::client_report::{Discarded, Reason};
use coroner_sentry::envelope::Envelope;
use coroner_sentry::event::Event;
use coroner_sentry::outbox::{Outbox, OutboxLimits, Pushed, State};
use coroner_sentry::protocol::Uuid;

fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_790_000_000)
}

fn envelope(event: u8) -> Envelope {
    let mut own = Event::default();
    (own.event_id, own.timestamp) = (Uuid::from_bytes([event; 16]), now());
    Envelope::from_event(&own)
}

#[test]
fn an_entry_is_queued_once() {
    let folder = tempfile::tempdir().unwrap();
    let outbox = Outbox::open(&folder.path().join("outbox")).unwrap();
    assert_eq!(outbox.push(&envelope(1), Some("abab-abab"), now()).unwrap(), Pushed::Added);
    assert_eq!(outbox.push(&envelope(1), None, now()).unwrap(), Pushed::Known);
    assert_eq!(outbox.push(&envelope(2), None, now() + Duration::from_millis(1)).unwrap(), Pushed::Added);
    let queue = outbox.queue().unwrap();
    assert_eq!(queue.len(), 2);
    assert_eq!(outbox.held_sessions().unwrap(), HashSet::from(["abababab".to_owned()]));
    assert_eq!(outbox.read(&queue[0]).unwrap(), Some(envelope(1)));

    outbox.put_off(&queue[0], 3, now() + Duration::from_mins(15)).unwrap();
    let later = &outbox.queue().unwrap()[0];
    assert_eq!((later.tries, later.not_before, &later.event_id), (3, 1_790_000_900, &queue[0].event_id));
    assert_eq!(outbox.read(&queue[0]).unwrap(), None, "that one is gone");
    outbox.sent(later).unwrap();
    assert_eq!(outbox.push(&envelope(1), None, now()).unwrap(), Pushed::Known, "it was sent");

    outbox.give_up(&queue[1]).unwrap();
    assert_eq!((outbox.queue().unwrap().len(), outbox.given_up().unwrap().len()), (0, 1));
    assert_eq!(outbox.push(&envelope(2), None, now()).unwrap(), Pushed::Known, "it was refused");
    assert_eq!(outbox.push(&envelope(3), None, now()).unwrap(), Pushed::Added);
    outbox.put_off(&outbox.queue().unwrap()[0], 3, now() + Duration::from_mins(15)).unwrap();
    outbox.revive().unwrap();
    let waits: Vec<_> = outbox.queue().unwrap().iter().map(|entry| (entry.tries, entry.not_before)).collect();
    assert_eq!(waits, [(0, 0), (0, 0)], "another server has refused nothing");
    outbox.clear().unwrap();
    assert_eq!(outbox.queue().unwrap().len(), 0);
}

#[test]
fn the_oldest_entry_is_removed_first_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let outbox = Outbox::open(folder.path()).unwrap();
    for event in 1..=5 {
        outbox.push(&envelope(event), None, now() + Duration::from_secs(event.into())).unwrap();
    }
    outbox.give_up(&outbox.queue().unwrap()[4]).unwrap();
    let limits = OutboxLimits { number: 3, ..OutboxLimits::default() };
    assert_eq!(outbox.enforce(&limits, now() + Duration::from_secs(6)).unwrap(), 2);
    let left: Vec<String> = outbox.queue().unwrap().iter().map(|entry| entry.event_id[..2].to_owned()).collect();
    assert_eq!(left, ["02", "03", "04"], "what was given up went first, then the oldest");
    let mut counted = Discarded::default();
    counted.count(Reason::CacheOverflow, "error");
    assert_eq!(outbox.read_state().discarded, counted);
    let old = OutboxLimits { age: Duration::from_secs(2), ..OutboxLimits::default() };
    assert_eq!(outbox.enforce(&old, now() + Duration::from_secs(6)).unwrap(), 0, "none has been tried yet");
    for entry in outbox.queue().unwrap() {
        outbox.put_off(&entry, 0, now()).unwrap();
    }
    assert_eq!(outbox.enforce(&old, now() + Duration::from_secs(6)).unwrap(), 0, "the clock may be wrong");
    assert_eq!(
        outbox.enforce(&old, now() + Duration::from_secs(9)).unwrap(),
        2,
        "the clock shows the age for as long again"
    );
    assert_eq!(outbox.enforce(&old, now()).unwrap(), 0, "a clock set back loses nothing");
}

#[test]
fn damaged_entries_are_errors_and_other_files_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let outbox = Outbox::open(folder.path()).unwrap();
    outbox.push(&envelope(1), None, now()).unwrap();
    let entry = &outbox.queue().unwrap()[0];
    fs::write(fs::read_dir(folder.path().join("queue")).unwrap().next().unwrap().unwrap().path(), b"noise").unwrap();
    fs::write(folder.path().join("queue/notes.txt"), b"mine").unwrap();
    fs::write(folder.path().join("state.json"), b"{\"done\":").unwrap();
    assert_eq!(outbox.read(entry).unwrap_err().kind(), io::ErrorKind::InvalidData);
    assert_eq!(outbox.queue().unwrap().len(), 1);
    assert_eq!(outbox.read_state(), State::default());
    outbox.update(|state| state.note_done("1")).unwrap();
    assert!(Outbox::open(folder.path()).unwrap().read_state().is_done("1"));
}

#[test]
fn only_one_process_sends() {
    let folder = tempfile::tempdir().unwrap();
    let outbox = Outbox::open(folder.path()).unwrap();
    let other = Outbox::open(&folder.path().join(".")).unwrap();
    let lock = fs::canonicalize(folder.path().join("lock")).unwrap();
    let descriptors = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let open = descriptors.filter(|entry| fs::read_link(entry.path()).is_ok_and(|file| file == lock)).count();
    assert!(open <= 1, "a second descriptor would lose the first one's lock");
    assert!(outbox.try_send().is_some());
    assert!(other.try_send().is_some(), "given back");
}
