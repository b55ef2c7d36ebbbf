//! Uninstalls while other threads report handled exceptions, which every app may do at any time.
#![cfg(any(target_os = "linux", target_os = "android"))]

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use coroner_capture::InstallOptions;
use coroner_capture::exception::{self, Ending};
use coroner_report::wire::{Exception, Language, Monitor};
use coroner_test_support::isolated;

/// Number of installs; before stacks were claimed, the process died within 15 of them.
const INSTALLS: usize = 25;
const REPORTERS: usize = 3;

/// A report that won the lock after an uninstall switched to a stack that was no longer mapped.
#[test]
fn releases_nothing_that_a_report_uses() {
    isolated(concat!(module_path!(), "::releases_nothing_that_a_report_uses"), || {
        let directory = tempfile::tempdir().unwrap();
        let options = InstallOptions { non_fatal_per_hour: 1_000_000, all_threads: false, ..InstallOptions::DEFAULT };
        let (stop, written) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..REPORTERS {
                scope.spawn(|| {
                    let handled =
                        Exception { language: Language::CPP, type_name: Some(b"handled"), ..Exception::default() };
                    while !stop.load(Ordering::Relaxed) {
                        let registers = coroner_walk::current_registers();
                        if exception::report(&registers, Monitor::CPP_EXCEPTION, &[handled], Ending::NonFatal) {
                            written.fetch_add(1, Ordering::Relaxed);
                            exception::delivered();
                        }
                    }
                });
            }
            for number in 0..INSTALLS {
                let store = directory.path().join(number.to_string());
                let store = CString::new(store.as_os_str().as_bytes()).unwrap();
                coroner_capture::install(&store, &options).unwrap();
                let before = written.load(Ordering::Relaxed);
                while written.load(Ordering::Relaxed) < before + 4 {
                    std::thread::yield_now();
                }
                assert!(coroner_capture::uninstall());
            }
            stop.store(true, Ordering::Relaxed);
        });
    });
}
