//! Installs Coroner, creates threads, and crashes: `cargo run -p smallest-app -- STORE THREADS`.
use std::ffi::CString;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let store = CString::new(arguments.next().expect("a store directory")).expect("a path");
    let threads: usize = arguments.next().map_or(0, |count| count.parse().expect("a number of threads"));
    let before = std::time::Instant::now();
    let run = coroner_capture::install(&store, &coroner_capture::InstallOptions::DEFAULT).expect("installed");
    println!(
        "installed in {:?}, run {:02x?}, interposes {}",
        before.elapsed(),
        run.id,
        coroner_capture::interposes_thread_creation()
    );
    for _ in 0..threads {
        std::thread::spawn(std::thread::park);
    }
    std::thread::sleep(std::time::Duration::from_millis(50));
    // SAFETY: none: this crashes on purpose.
    unsafe { std::ptr::null_mut::<u32>().write_volatile(1) };
}
