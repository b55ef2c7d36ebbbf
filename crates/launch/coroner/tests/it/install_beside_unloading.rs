//! Installs in a process in which another thread loads and unloads a library all the time.
//!
//! The library is compiled on the way: by the words of `CORONER_TEST_CC`, or by `cc`.

use std::ffi::CString;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use coroner_test_support::isolated;

/// The list of images is read before there is a handler that would make a bad load good: nothing
/// may be taken away meanwhile.
#[test]
fn an_image_that_is_being_unloaded_is_not_read() {
    isolated(concat!(module_path!(), "::an_image_that_is_being_unloaded_is_not_read"), || {
        let directory = tempfile::tempdir().unwrap();
        let (source, library) = (directory.path().join("come_and_go.c"), directory.path().join("libcome_and_go.so"));
        std::fs::write(&source, "int come_and_go(void) { return 1; }\n").unwrap();
        let words = std::env::var("CORONER_TEST_CC").unwrap_or_else(|_| "cc".to_owned());
        let mut words = words.split_whitespace();
        let mut compiler = Command::new(words.next().expect("a compiler"));
        compiler.args(words).args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source);
        assert!(compiler.status().expect("a C compiler is needed").success());

        let path = CString::new(library.as_os_str().as_encoded_bytes()).unwrap();
        let (stop, loads) = (AtomicBool::new(false), AtomicU32::new(0));
        let seconds = std::env::var("CORONER_TEST_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
        let until = Instant::now() + Duration::from_secs(seconds);
        let (mut installs, mut failed) = (0, None);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // SAFETY: a library of this test's own, which nothing else uses.
                    unsafe {
                        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
                        assert!(!handle.is_null());
                        libc::dlclose(handle);
                    }
                    loads.fetch_add(1, Ordering::Relaxed);
                }
            });
            while Instant::now() < until || installs < 4 {
                let store = directory.path().join(format!("store-{installs}"));
                match coroner::install(coroner::Config::new("beside-unloading").store_dir(&store)) {
                    Ok(coroner) => coroner.uninstall(),
                    Err(error) => {
                        failed = Some(error);
                        break;
                    }
                }
                installs += 1;
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(failed.is_none(), "{failed:?}");
        println!("{installs} installs beside {} loads", loads.into_inner());
    });
}
