//! Goes wrong in one function in many ways, for what a server makes of them: `one_place_program STORE WAY`.
//!
//! Ways: `null` and `elsewhere` for stores to two addresses, `trap`, `panic` and `panic-again` with two messages, `io-error` and `parse-error`
//! for errors that are reported, `hang`. What the process survives is in the folder `reports` of the store when it ends.
#![cfg(any(target_os = "linux", target_os = "android", target_os = "macos"))]

use std::hint::black_box;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use coroner::{Config, HangWatch};

/// Longer than anything takes here, on a machine that does other things, too.
const LIMIT: Duration = Duration::from_mins(1);

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, store, way] = &arguments[..] else { panic!("usage: one_place_program STORE WAY") };
    let threshold = (way == "hang").then_some(Duration::from_millis(100));
    let config = Config::new("one-place-program").version("1.0").store_dir(store).hang_threshold(threshold);
    let coroner = coroner::install(config).expect("Coroner is installed");
    let watch = HangWatch::new();
    // Until `paint`: where the machine is busy, this thread may stand still for that long anywhere.
    watch.idle();
    let reports = coroner.store_dir().join("reports");
    if way == "hang" {
        // By another thread: the one that hangs calls nothing of the app's, so that every sample is of one place.
        let (reports, run) = (reports.clone(), coroner.store_dir().join("runs").join(coroner.run_id().to_string()));
        std::thread::spawn(move || {
            while !has_json(&reports) && !has_hang(&run) {
                std::thread::sleep(Duration::from_millis(5));
            }
            IS_REPORTED.store(true, Ordering::Relaxed);
        });
    }
    paint(way, &watch);
    // A hang's report comes when the hang is over.
    watch.idle();
    let deadline = Instant::now() + LIMIT;
    while !has_json(&reports) && Instant::now() < deadline {
        coroner.flush(LIMIT);
    }
}

/// Whether a hang is in the run.
fn has_hang(run: &Path) -> bool {
    let files = std::fs::read_dir(run).into_iter().flatten().flatten();
    files.into_iter().any(|file| file.file_name().to_string_lossy().starts_with("report-"))
}

fn has_json(reports: &Path) -> bool {
    let files = std::fs::read_dir(reports).into_iter().flatten().flatten();
    files.into_iter().any(|file| file.path().extension().is_some_and(|extension| extension == "json"))
}

/// Whether the report of a hang is there.
static IS_REPORTED: AtomicBool = AtomicBool::new(false);

/// The one place.
#[inline(never)]
fn paint(way: &str, watch: &HangWatch) {
    match way {
        // SAFETY: it ends the process, which is what it is for.
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
            let error = black_box("ink").parse::<u32>().expect_err("it is no number");
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
