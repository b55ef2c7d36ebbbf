//! An outbox in a child made by `fork`, and in a process without descriptors.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime};

use coroner_outbox::{Outbox, Pushed};
use coroner_test_support::isolated;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct State {
    consent: Option<bool>,
    changes: u32,
}

/// Runs `child` in a forked process, which is killed after ten seconds, and returns its result.
fn in_a_child(child: impl FnOnce() -> bool) -> Option<bool> {
    // SAFETY: the child runs `child` alone and leaves by `_exit`. glibc and musl keep malloc usable
    // in it.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "{}", std::io::Error::last_os_error());
    if pid == 0 {
        let printed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(false);
        // SAFETY: ends this process, and nothing else.
        unsafe { libc::_exit(i32::from(!printed)) };
    }
    let (began, mut status) = (Instant::now(), 0);
    loop {
        // SAFETY: a child of ours, and a valid place for its status.
        if unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } == pid {
            return Some(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
        }
        if began.elapsed() > Duration::from_secs(10) {
            // SAFETY: a child of ours that has not been waited for.
            unsafe { (libc::kill(pid, libc::SIGKILL), libc::waitpid(pid, &raw mut status, 0)) };
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Calls `test` with a folder of each kind: an ordinary one, and one of an app group's on iOS,
/// where no file may be locked.
fn in_each_folder(test: impl Fn(&Path)) {
    let folder = tempfile::tempdir().unwrap();
    for name in ["outbox", "Containers/Shared/AppGroup/6E1F0F3A/outbox"] {
        test(&folder.path().join(name));
    }
}

#[test]
fn a_forked_child_does_not_wait_for_the_parents_thread() {
    isolated(concat!(module_path!(), "::a_forked_child_does_not_wait_for_the_parents_thread"), || {
        in_each_folder(a_child_beside_a_thread_that_sends);
    });
}

fn a_child_beside_a_thread_that_sends(folder: &Path) {
    let outbox = Outbox::open(folder, "envelope").unwrap();
    let (held, is_held) = mpsc::channel();
    let (done, is_done) = mpsc::channel::<()>();
    let of_thread = outbox.clone();
    let thread = std::thread::spawn(move || {
        // A thread that sends for half a minute, and one that notes something meanwhile.
        let sending = of_thread.try_send().unwrap();
        of_thread
            .update(|_: &mut State| {
                held.send(()).unwrap();
                let _ = is_done.recv();
            })
            .unwrap();
        drop(sending);
    });
    is_held.recv().unwrap();
    let path = folder.to_owned();
    let printed = in_a_child(|| {
        let own = Outbox::open(&path, "envelope").unwrap();
        let pushed = own.push(&"01".repeat(16), "", b"message", SystemTime::now()).unwrap();
        // The parent sends still.
        own.try_send().is_none() && pushed == Pushed::Added
    });
    assert_eq!(printed, Some(true), "`None`: it hung");
    done.send(()).unwrap();
    thread.join().unwrap();
    let printed = in_a_child(|| {
        let own = Outbox::open(&path, "envelope").unwrap();
        own.try_send().is_some() && own.update(|state: &mut State| state.consent = Some(false)).is_ok()
    });
    assert_eq!(printed, Some(true));
    assert_eq!(outbox.read_state::<State>().consent, Some(false));
    assert_eq!(outbox.queue().unwrap().len(), 1);
}

/// Several processes change the state at once, and no change is lost.
#[test]
fn no_other_processs_change_is_lost() {
    isolated(concat!(module_path!(), "::no_other_processs_change_is_lost"), || {
        const CHANGES: u32 = 20;
        in_each_folder(|folder| {
            let outbox = Outbox::open(folder, "envelope").unwrap();
            let changes = || {
                in_a_child(|| {
                    let own = Outbox::open(folder, "envelope").unwrap();
                    (0..CHANGES).all(|_| own.update(|state: &mut State| state.changes += 1).is_ok())
                })
            };
            std::thread::scope(|threads| {
                let both = [threads.spawn(changes), threads.spawn(changes)];
                assert_eq!(both.map(|child| child.join().unwrap()), [Some(true); 2]);
            });
            assert_eq!(outbox.read_state::<State>().changes, 2 * CHANGES, "{}", folder.display());
        });
    });
}

/// iOS ends an app that is suspended with a lock on a file of an app group's.
#[cfg(target_os = "linux")]
#[test]
fn in_an_app_group_no_file_is_locked() {
    isolated(concat!(module_path!(), "::in_an_app_group_no_file_is_locked"), || {
        in_each_folder(|folder| {
            let printed = in_a_child(|| {
                let outbox = Outbox::open(folder, "envelope").unwrap();
                let _sending = outbox.try_send().unwrap();
                let locks = outbox.update(|_: &mut State| std::fs::read_to_string("/proc/locks").unwrap()).unwrap();
                let pid = std::process::id().to_string();
                let count = locks.lines().filter(|lock| lock.split_whitespace().nth(4) == Some(&pid)).count();
                count == if folder.to_string_lossy().contains("AppGroup") { 0 } else { 2 }
            });
            assert_eq!(printed, Some(true), "{}", folder.display());
        });
    });
}

#[test]
fn a_forked_child_opens_an_outbox_while_its_parent_opens_others() {
    isolated(concat!(module_path!(), "::a_forked_child_opens_an_outbox_while_its_parent_opens_others"), || {
        let folder = tempfile::tempdir().unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|threads| {
            for name in ["a", "b"] {
                let path = folder.path().join(name);
                let over = &over;
                threads.spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        drop(Outbox::open(&path, "envelope"));
                    }
                });
            }
            let opened = (0..50).map(|_| in_a_child(|| Outbox::open(folder.path(), "envelope").is_ok()));
            let all = opened.take_while(|opened| *opened == Some(true)).count();
            over.store(true, Ordering::Relaxed);
            assert_eq!(all, 50, "the next one hung");
        });
    });
}

#[test]
fn without_descriptors_consent_is_not_forgotten() {
    isolated(concat!(module_path!(), "::without_descriptors_consent_is_not_forgotten"), || {
        let folder = tempfile::tempdir().unwrap();
        let printed = in_a_child(|| {
            let outbox = Outbox::open(folder.path(), "envelope").unwrap();
            outbox.update(|state: &mut State| state.consent = Some(true)).unwrap();
            outbox.set_consent(false).unwrap();
            let limit = |most| {
                let limit = libc::rlimit { rlim_cur: most, rlim_max: 1024 };
                // SAFETY: a valid limit, of this process alone.
                unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
            };
            limit(3);
            let read = outbox.consent();
            let changed = outbox.update(|state: &mut State| *state = State::default());
            limit(64);
            read.is_err()
                && changed.is_err()
                && outbox.consent().unwrap() == Some(false)
                && outbox.read_state::<State>().consent == Some(true)
        });
        assert_eq!(printed, Some(true));
    });
}

#[test]
fn a_refusal_needs_no_disk_space() {
    isolated(concat!(module_path!(), "::a_refusal_needs_no_disk_space"), || {
        let folder = tempfile::tempdir().unwrap();
        let outbox = Outbox::open(folder.path(), "envelope").unwrap();
        let printed = in_a_child(|| {
            let outbox = Outbox::open(folder.path(), "envelope").unwrap();
            let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: of this process alone: a file that grows is an error and no signal.
            unsafe {
                (libc::signal(libc::SIGXFSZ, libc::SIG_IGN), libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit))
            };
            outbox.set_consent(true).is_err() && outbox.set_consent(false).is_ok()
        });
        assert_eq!(printed, Some(true));
        assert!(outbox.is_refused().unwrap());
    });
}
