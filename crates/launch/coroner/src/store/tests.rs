use std::os::unix::fs::symlink;
use std::time::Duration;

use super::*;

fn id(number: u8) -> Id {
    Id([number; 16])
}

#[test]
fn a_run_has_one_name() {
    let text = "ab".repeat(16);
    assert_eq!(run_of(text.as_ref()), Some(id(0xab)));
    assert_eq!(run_of(text.to_uppercase().as_ref()), None);
    assert_eq!(run_of("abababab-abab-abab-abab-abababababab".as_ref()), None);
    assert_eq!(run_of("..".as_ref()), None);
}

fn make_run(store: &Store, id: Id, report: &[u8]) -> Directory {
    let run = store.runs().unwrap().create_subdirectory(&name_of(id)).unwrap();
    run.write_atomically(REPORT.as_ref(), report).unwrap();
    run.write_atomically(LOCK.as_ref(), b"").unwrap();
    run.write_atomically(STATE.as_ref(), b"").unwrap();
    run
}

fn age(run: &Directory, seconds: u64) {
    let lock = run.file(LOCK.as_ref(), true).unwrap();
    lock.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
}

fn store() -> (tempfile::TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("deep/store")).unwrap();
    (folder, store)
}

/// Claims all ended runs, oldest first; also returns the entries that are not runs.
fn claim_ended(store: &Store, own: Option<Id>) -> (Vec<EndedRun>, Vec<(PathBuf, String)>) {
    let found = store.unprocessed(own).unwrap();
    let process = ProcessIdentity::of_this_process();
    let runs = found.runs.iter().filter_map(|run| match store.claim(run.id, &process).unwrap() {
        Claim::Taken(run) => Some(*run),
        Claim::Busy | Claim::Gone => None,
    });
    (runs.collect(), found.foreign)
}

fn ids(runs: &[EndedRun]) -> Vec<Id> {
    runs.iter().map(|run| run.id).collect()
}

#[test]
fn ended_runs_are_claimed_oldest_first_and_the_own_run_never() {
    let (_folder, store) = store();
    for (number, seconds) in [(1, 10), (2, 30), (3, 20)] {
        age(&make_run(&store, id(number), b"r"), seconds);
    }
    let ended = claim_ended(&store, Some(id(3))).0;
    assert_eq!(ids(&ended), [id(2), id(1)]);
    assert_eq!(ended[0].raw().unwrap().reports, [b"r"]);
    // A claimed run can't be claimed again.
    assert!(claim_ended(&store, Some(id(3))).0.is_empty());
}

#[test]
fn entries_that_are_not_runs_are_described_and_left_alone() {
    let (folder, store) = store();
    let runs = &store.path().join(RUNS);
    std::fs::write(runs.join("notes.txt"), b"mine").unwrap();
    std::fs::create_dir(folder.path().join("elsewhere")).unwrap();
    symlink(folder.path().join("elsewhere"), runs.join(id(9).to_string())).unwrap();
    let (ended, foreign) = claim_ended(&store, None);
    assert!(ended.is_empty());
    let reasons: Vec<&str> = foreign.iter().map(|(_, why)| why.as_str()).collect();
    assert!(reasons[0].contains("symbolic link") && reasons[1].contains("not a run"), "{reasons:?}");
    assert_eq!(std::fs::read(runs.join("notes.txt")).unwrap(), b"mine");
}

#[test]
fn a_partly_removed_run_is_removed_completely() {
    let (_folder, store) = store();
    let half = store.runs().unwrap().create_subdirectory(format!("{REMOVED}{}", id(4)).as_ref()).unwrap();
    half.write_atomically(LOCK.as_ref(), b"").unwrap();
    let (ended, foreign) = claim_ended(&store, None);
    assert!(ended.is_empty() && foreign.is_empty());
    assert!(store.runs().unwrap().names().unwrap().is_empty());
}

#[test]
fn a_broken_run_is_kept_unchanged_with_the_reason() {
    let (_folder, store) = store();
    make_run(&store, id(5), b"something else");
    let run = claim_ended(&store, None).0.pop().unwrap();
    let path = store.set_aside(&run, "not a report").unwrap();
    assert_eq!(RawRun::read(&path).unwrap().reports, [b"something else"]);
    let list = store.list().unwrap();
    assert_eq!((list[0].id, list[0].broken.as_deref()), (id(5), Some("not a report")));
    assert!(claim_ended(&store, None).0.is_empty());
}

#[test]
fn runs_that_began_in_the_same_clock_tick_have_an_order() {
    let (_folder, store) = store();
    let now = SystemTime::now();
    for number in [7, 3, 5, 1, 8, 2, 6, 4] {
        let lock = make_run(&store, id(number), b"r").file(LOCK.as_ref(), true).unwrap();
        lock.set_modified(now).unwrap();
    }
    let all: Vec<Id> = (1..=8).map(id).collect();
    assert_eq!(store.list().unwrap().iter().map(|run| run.id).collect::<Vec<_>>(), all);
    assert_eq!(ids(&claim_ended(&store, None).0), all);
}

#[test]
fn an_entry_in_place_of_the_broken_directory_is_kept_and_does_not_block() {
    let (folder, store) = store();
    let outside = folder.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    for place in 0..2 {
        let at = store.path().join(BROKEN);
        if place == 0 {
            std::fs::write(&at, b"mine").unwrap();
        } else {
            symlink(&outside, &at).unwrap();
        }
        make_run(&store, id(5 + place), b"something else");
        assert_eq!(store.list().unwrap().len(), 1);
        let run = claim_ended(&store, None).0.pop().unwrap();
        store.enforce(&Retention::default(), id(9), SystemTime::now()).unwrap();
        let path = store.set_aside(&run, "not a report").unwrap();
        assert!(path.starts_with(at) && store.list().unwrap()[0].broken.is_some());
        std::fs::remove_dir_all(store.path().join(BROKEN)).unwrap();
    }
    let kept = std::fs::read_dir(store.path()).unwrap().map(|entry| entry.unwrap().path());
    let kept: Vec<PathBuf> =
        kept.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(BROKEN)).collect();
    assert_eq!(kept.len(), 2, "{kept:?}");
    assert_eq!(kept.iter().filter(|path| std::fs::read(path).is_ok_and(|bytes| bytes == b"mine")).count(), 1);
    assert_eq!(std::fs::read_dir(outside).unwrap().count(), 0);
}

#[test]
fn limits_remove_runs_without_a_report_first_and_never_live_ones() {
    let (_folder, store) = store();
    make_run(&store, id(1), b"broken");
    let run = claim_ended(&store, None).0.pop().unwrap();
    store.set_aside(&run, "test").unwrap();
    drop(run);
    for (number, seconds, report) in [(2, 30, &b"r"[..]), (3, 20, b""), (4, 10, b"r"), (5, 50, b"r")] {
        age(&make_run(&store, id(number), report), seconds);
    }
    let enforce = |limits: Retention| store.enforce(&limits, id(5), SystemTime::now()).unwrap();
    let left = || {
        let mut left: Vec<Id> = store.list().unwrap().into_iter().map(|run| run.id).collect();
        left.sort();
        left
    };
    // Three reports, one of them broken. The run without a report and the own run don't count.
    assert_eq!(enforce(Retention { number: 3, runs: 1, ..Retention::default() }), Evicted::default());
    assert_eq!(enforce(Retention { number: 2, ..Retention::default() }), Evicted { reports: 1, runs: 0 });
    assert_eq!(left(), [id(1), id(3), id(4), id(5)]);
    assert_eq!(enforce(Retention { runs: 0, ..Retention::default() }), Evicted { reports: 0, runs: 1 });
    assert_eq!(left(), [id(1), id(4), id(5)]);
}

#[test]
fn write_permission_of_others_is_removed() {
    use std::os::unix::fs::PermissionsExt;
    let (_folder, store) = store();
    let paths = [store.path().to_owned(), store.path().join(RUNS), store.path().join(REPORTS)];
    std::fs::create_dir(&paths[2]).unwrap();
    for path in &paths {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    Store::open(store.path()).unwrap();
    for path in &paths {
        assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o7777, 0o755, "{path:?}");
    }
}

#[test]
fn a_store_of_another_user_is_rejected_by_root_too() {
    if !nix::unistd::geteuid().is_root() {
        return; // Only root can change a directory's owner.
    }
    let (_folder, store) = store();
    let other = |path: &Path| std::os::unix::fs::chown(path, Some(4711), None).unwrap();
    make_run(&store, id(1), b"r");
    other(&store.path().join(RUNS).join(id(1).to_string()));
    let why = claim::claim(&store.runs().unwrap(), id(1), &ProcessIdentity::default()).unwrap_err().to_string();
    assert!(why.contains("belongs to user 4711"), "{why}");
    other(store.path());
    let why = Store::open(store.path()).unwrap_err().to_string();
    assert!(why.contains("belongs to user 4711"), "{why}");
}

#[test]
fn what_others_planted_in_a_store_is_set_aside() {
    let is_root = nix::unistd::geteuid().is_root();
    let plants: [fn(&Path, &Path); 3] = [
        |place, elsewhere| symlink(elsewhere, place).unwrap(),
        |place, _| std::fs::write(place, "not a directory").unwrap(),
        |place, _| {
            std::fs::create_dir(place).unwrap();
            std::os::unix::fs::chown(place, Some(4711), None).unwrap();
        },
    ];
    // Only root can change a directory's owner.
    for plant in &plants[..if is_root { 3 } else { 2 }] {
        for name in [RUNS, BROKEN, REPORTS] {
            let (folder, store) = store();
            let (place, elsewhere) = (store.path().join(name), folder.path().join("elsewhere"));
            std::fs::create_dir(&elsewhere).unwrap();
            let _ = std::fs::remove_dir(&place);
            plant(&place, &elsewhere);
            let opened = Store::open(store.path()).unwrap();
            let names: Vec<_> =
                std::fs::read_dir(store.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert!(names.iter().any(|entry| entry.to_string_lossy().starts_with(&format!("{name}.untrusted-"))));
            let run = opened.create_ended(id(1), SystemTime::now()).unwrap();
            assert!(run.path().starts_with(store.path()));
            assert!(place.symlink_metadata().map_or(name != RUNS, |found| found.is_dir()));
            assert!(std::fs::read_dir(&elsewhere).unwrap().next().is_none());
        }
    }
}

#[test]
fn files_with_a_second_name_or_of_another_user_are_not_read() {
    let (folder, store) = store();
    let root = store.root().unwrap();
    store.set_evicted(7);
    let path = store.path().join(EVICTED);
    std::fs::hard_link(&path, folder.path().join("second")).unwrap();
    let why = root.read(EVICTED.as_ref(), 32).unwrap_err().to_string();
    assert_eq!((why.as_str(), store.evicted()), ("has 2 names", 0));
    std::fs::remove_file(folder.path().join("second")).unwrap();
    assert_eq!(store.evicted(), 7);
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(&path, Some(4711), None).unwrap();
        assert_eq!(store.evicted(), 0);
        // Another program, such as the command, may read another user's store.
        assert_eq!(Store::open_existing(store.path()).unwrap().evicted(), 7);
    }
}

#[test]
fn a_store_that_is_a_link_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("real")).unwrap();
    symlink(folder.path().join("real"), folder.path().join("store")).unwrap();
    let error = Store::open(&folder.path().join("store")).unwrap_err().to_string();
    assert!(error.contains("create the store"), "{error}");
    assert!(std::fs::read_dir(folder.path().join("real")).unwrap().next().is_none());
}
