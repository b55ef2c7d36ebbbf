//! Fails in one function in different ways, to see how a server groups them: `one_place_program
//! STORE WAY`.
//!
//! Ways: `null` and `elsewhere` store to two addresses, `trap`, `panic` and `panic-again` have
//! different messages, `io-error` and `parse-error` report errors, `hang`. Nonfatal reports are in
//! the folder `reports` of the store when the process ends.
#![cfg(any(target_os = "linux", target_os = "android", target_os = "macos"))]

use std::hint::black_box;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use coroner::{Config, HangWatch};

/// Timeout, longer than any step takes even on a busy machine.
const LIMIT: Duration = Duration::from_mins(1);

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, store, way] = &arguments[..] else { panic!("usage: one_place_program STORE WAY") };
    let threshold = (way == "hang").then_some(Duration::from_millis(100));
    let config = Config::new("one-place-program").version("1.0").store_dir(store).hang_threshold(threshold);
    let coroner = coroner::install(config).expect("can't install Coroner");
    let watch = HangWatch::new();
    // Not watched until `paint`: on a busy machine this thread may be delayed anywhere.
    watch.idle();
    let reports = coroner.store_dir().join("reports");
    if way == "hang" {
        // On another thread: the hanging one calls no app code, so that all samples are from one
        // place.
        let (reports, run) = (reports.clone(), coroner.store_dir().join("runs").join(coroner.run_id().to_string()));
        std::thread::spawn(move || {
            while !has_json(&reports) && !has_hang(&run) {
                std::thread::sleep(Duration::from_millis(5));
            }
            IS_REPORTED.store(true, Ordering::Relaxed);
        });
    }
    paint(way, &watch);
    // A hang is reported when it ends.
    watch.idle();
    let deadline = Instant::now() + LIMIT;
    while !has_json(&reports) && Instant::now() < deadline {
        coroner.flush(LIMIT);
    }
}

/// Whether the run contains a hang.
fn has_hang(run: &Path) -> bool {
    let files = std::fs::read_dir(run).into_iter().flatten().flatten();
    files.into_iter().any(|file| file.file_name().to_string_lossy().starts_with("report-"))
}

fn has_json(reports: &Path) -> bool {
    let files = std::fs::read_dir(reports).into_iter().flatten().flatten();
    files.into_iter().any(|file| file.path().extension().is_some_and(|extension| extension == "json"))
}

/// Whether the hang's report exists.
static IS_REPORTED: AtomicBool = AtomicBool::new(false);

/// The function that fails.
#[inline(never)]
fn paint(way: &str, watch: &HangWatch) {
    match way {
        // SAFETY: none: this crashes on purpose.
        "null" => unsafe { black_box(std::ptr::without_provenance_mut::<u64>(8)).write_volatile(1) },
        // SAFETY: as above.
        "elsewhere" => unsafe { black_box(0x7000 as *mut u64).write_volatile(1) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        "trap" => unsafe { std::arch::asm!("ud2") },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        "trap" => unsafe { std::arch::asm!("udf #0") },
        "panic" | "panic-again" => panic!("no ink for {way}"),
        "io-error" => drop(black_box(coroner::report_error(&std::io::Error::other("no ink")))),
        "parse-error" => {
            let error = black_box("ink").parse::<u32>().expect_err("not a number");
            black_box(coroner::report_error(&error));
        }
        "hang" => {
            watch.beat();
            let deadline = Instant::now() + LIMIT;
            while !IS_REPORTED.load(Ordering::Relaxed) && Instant::now() < deadline {
                std::thread::yield_now();
            }
        }
        other => panic!("unknown way {other}"),
    }
    black_box(());
}
