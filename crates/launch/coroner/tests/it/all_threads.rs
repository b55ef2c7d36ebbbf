//! Live backtraces of all threads on Apple's systems, to where each begins; and the exceptions that
//! they cost the kernel, which is why this is the only test of its process.

use std::ffi::c_void;
use std::hint::black_box;
use std::sync::mpsc;

use coroner::backtrace::{Backtrace, CaptureOptions, thread_id};
use coroner_process::threads::{ThreadList, activity, facts};
use coroner_test_support::isolated;

fn functions(backtrace: &Backtrace) -> Vec<String> {
    let names = backtrace.names();
    names.frames().iter().map(|frame| frame.function.as_deref().unwrap_or("?").to_owned()).collect()
}

#[inline(never)]
fn waits_here(make: &mut dyn FnMut()) {
    make();
    black_box(&make);
}

/// Returns the number of exceptions that the kernel has raised in this process; 0 unless
/// darwin-host counts them.
fn exceptions() -> u64 {
    // SAFETY: a NUL-terminated name; the host's service has this type.
    unsafe {
        let count = libc::dlsym(libc::RTLD_DEFAULT, c"darwin_host_exceptions".as_ptr());
        std::mem::transmute::<*mut c_void, Option<extern "C" fn() -> u64>>(count).map_or(0, |count| count())
    }
}

/// Every walk ends where the system's code begins the stack, and none needs a load that faults.
/// Coroner's own threads, without which such a load would wait for ever, are neither listed nor
/// stopped.
#[test]
fn no_walk_needs_a_load_that_faults() {
    isolated(concat!(module_path!(), "::no_walk_needs_a_load_that_faults"), || {
        let store = tempfile::tempdir().unwrap();
        let config = coroner::Config::new("all-threads-test").store_dir(store.path());
        let _coroner = coroner::install(config).unwrap();
        let (sender, receiver) = mpsc::channel::<()>();
        let (ready, is_ready) = mpsc::channel();
        let waiting = std::thread::spawn(move || {
            waits_here(&mut || {
                ready.send(thread_id()).unwrap();
                receiver.recv().unwrap_err();
            });
        });
        let waiting_id = is_ready.recv().unwrap();
        let list = ThreadList::take().unwrap();
        let own: Vec<_> = list
            .ports()
            .iter()
            .filter(|port| activity(**port).is_some_and(|thread| thread.name.as_bytes().starts_with(b"coroner.e")))
            .filter_map(|port| facts(*port))
            .collect();
        assert_eq!(own.len(), 1, "coroner.exceptions");
        assert!(Backtrace::of_thread(own[0].tid, &CaptureOptions::default()).is_err());
        let before = exceptions();
        let all = Backtrace::of_all_threads(&CaptureOptions::default());
        let current = Backtrace::current();
        let raised = exceptions() - before;
        assert!(all.iter().all(|(thread, _)| own.iter().all(|own| own.tid != *thread)), "{all:?}");
        let main = list.ports().first().and_then(|port| facts(*port)).unwrap().tid;
        for (thread, backtrace) in &all {
            let backtrace = backtrace.as_ref().unwrap();
            let functions = functions(backtrace);
            let beginning = if *thread == main { "start" } else { "thread_start" };
            assert_eq!(functions.last().map(String::as_str), Some(beginning), "{functions:#?}");
        }
        assert_eq!(functions(&current).last().map(String::as_str), Some("thread_start"), "{current:#?}");
        let waits =
            all.iter().find(|(thread, _)| *thread == waiting_id).and_then(|(_, backtrace)| backtrace.as_ref().ok());
        let functions = functions(waits.unwrap());
        assert!(functions.iter().any(|function| function.contains("waits_here")), "{functions:#?}");
        assert_eq!(raised, 0, "exceptions of the kernel's in walks that need none");
        drop(sender);
        waiting.join().unwrap();
    });
}
