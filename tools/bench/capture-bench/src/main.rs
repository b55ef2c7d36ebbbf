//! One crash, timed from outside, or one install, timed from inside.
//!
//! `capture-bench FOLDER THREADS` crashes, `capture-bench FOLDER install` installs.
//!
//! A feature selects the reporter at build time: `coroner` (crash time only), `sdk` (the full SDK),
//! or `minidump-writer` (crash-handler's handler forks a child, which writes a minidump of its
//! parent), or none.
//!
//! To install, it prints the nanoseconds that took, and exits normally. To crash, it parks all
//! threads except the main one, prints the path of the future report file, waits for a line, writes
//! the time to `FOLDER/started` (a shared mapping of two words, nanoseconds of CLOCK_MONOTONIC and
//! of CLOCK_REALTIME) and stores to address 0.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, folder, threads] = &arguments[..] else {
        eprintln!("usage: capture-bench FOLDER THREADS|install");
        std::process::exit(2);
    };
    let folder = Path::new(folder);
    if threads == "install" {
        let began = now();
        install(folder);
        println!("{}", now() - began);
        return;
    }
    let threads: usize = threads.parse().expect("a number of threads");
    let started = map_started(&folder.join("started"));

    let report = install(folder);
    coroner_faults::threads::park(threads.saturating_sub(1));
    println!("{}", report.display());
    std::io::stdout().flush().expect("the runner reads");
    let _ = std::io::stdin().read(&mut [0]).expect("the runner says go");
    let fault = coroner_faults::find("null-store").expect("it is in the table").run;
    // SAFETY: the mapping is two words long and never unmapped.
    unsafe {
        started.add(1).write_volatile(time(libc::CLOCK_REALTIME));
        started.write_volatile(now());
    }
    fault();
}

/// Returns CLOCK_MONOTONIC in nanoseconds.
fn now() -> u64 {
    time(libc::CLOCK_MONOTONIC)
}

fn time(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn map_started(path: &Path) -> *mut u64 {
    let file = File::options().create(true).truncate(true).read(true).write(true).open(path).expect("a folder");
    file.set_len(16).expect("16 bytes");
    // SAFETY: a new mapping of an open file.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), 16, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    assert!(at != libc::MAP_FAILED, "a file can be mapped");
    let at = at.cast::<u64>();
    // Touches its page before the crash.
    // SAFETY: as above.
    unsafe { at.write_volatile(0) };
    at
}

#[cfg(feature = "coroner")]
fn install(folder: &Path) -> PathBuf {
    let store = folder.join("store");
    let path = std::ffi::CString::new(store.as_os_str().as_encoded_bytes()).expect("a path");
    let mut setup = coroner_capture::InstallOptions::DEFAULT;
    setup.symbol_names = std::env::var_os("CAPTURE_BENCH_NAMES").is_some();
    let run = coroner_capture::install(&path, &setup).expect("Coroner can be installed");
    let id: String = run.id.iter().map(|byte| format!("{byte:02x}")).collect();
    store.join("runs").join(id).join("report")
}

#[cfg(feature = "sdk")]
fn install(folder: &Path) -> PathBuf {
    let store = folder.join("store");
    let installed = coroner::install(coroner::Config::new("bench").version("1.0").store_dir(&store));
    let coroner = installed.expect("Coroner can be installed");
    store.join("runs").join(coroner.run_id().to_string()).join("report")
}

#[cfg(not(any(feature = "coroner", feature = "sdk", feature = "minidump-writer")))]
fn install(folder: &Path) -> PathBuf {
    folder.join("started")
}

#[cfg(feature = "minidump-writer")]
fn install(folder: &Path) -> PathBuf {
    use crash_handler::{CrashContext, CrashEventResult, CrashHandler, make_crash_event};
    use minidump_writer::CrashContextExt;
    use minidump_writer::minidump_writer::MinidumpWriterConfig;

    // On the 8 KiB that Rust's standard library gives its main thread, the peer overflows and
    // leaves an empty file.
    let stack = Vec::leak(vec![0_u8; 1 << 20]);
    let stack = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
    // SAFETY: the memory is never freed and has no other use.
    unsafe { libc::sigaltstack(&raw const stack, std::ptr::null_mut()) };
    let path = folder.join("minidump");
    let file = File::create(&path).expect("a folder");
    let on_crash = move |context: &CrashContext| {
        let (pid, tid) = (context.pid, context.tid);
        // SAFETY: the child writes the dump and exits. Allocating in it is the peer's design.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut writer = MinidumpWriterConfig::new(pid, tid);
            // SAFETY: plain data.
            writer.set_crash_context(CrashContextExt { inner: unsafe { std::ptr::read(context) } });
            let written = writer.write(&mut &file).is_ok();
            // SAFETY: exits the child without the parent's exit handlers.
            unsafe { libc::_exit(i32::from(!written)) };
        }
        let mut status = 0;
        // SAFETY: waits for that child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        CrashEventResult::Handled(false)
    };
    // SAFETY: the handler is not async-signal-safe; that is the peer's design, and this process
    // dies next.
    let handler = CrashHandler::attach(unsafe { make_crash_event(on_crash) });
    std::mem::forget(handler.expect("the handler can be attached"));
    path
}
