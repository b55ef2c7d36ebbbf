//! A program with a hang watchdog: `hang_program STORE THRESHOLD-MS [WORD…]`.
//!
//! It prints how the last run ended, then runs the words in order:
//! * `silent`: sends no heartbeat until the hang is recorded, then does until its end is recorded
//! * `forever`: sends no heartbeat; prints `hangs` when the hang is recorded
//! * `noted`: like `forever`, but prints `hangs` as soon as the run state contains the hang
//! * `silent-for=MS`; `beat-for=MS` (a heartbeat every tenth of the threshold); `idle-for=MS`
//! * `begins-hang`, `works-for=MS`, `reads-for=MS` (blocked in read(2)), `ends-hang`
//! * `stopped`: sends no heartbeat for half of the threshold, stops the process, and sends one soon
//!   after it continues
//! * `flush`, `uninstall`
//! * `main-queue-for=MS` (macOS): works through the main queue like a run loop
//! * `stuck` (macOS): `silent` without an initial heartbeat
//! * `in-thread`: runs the remaining words on a thread `worker`, while the main thread sends
//!   heartbeats

use std::path::PathBuf;
use std::time::{Duration, Instant};

use coroner::{Config, Coroner, Crashes, Delivery, HangWatch, Limits};
use coroner_tests::hang;

struct Program {
    coroner: Coroner,
    run: PathBuf,
    threshold: Duration,
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let store = PathBuf::from(arguments.next().expect("a store"));
    let threshold = Duration::from_millis(arguments.next().and_then(|text| text.parse().ok()).expect("a threshold"));
    let words: Vec<String> = arguments.collect();
    let config = Config::new("hang-program").version("1.2.3").store_dir(&store).hang_threshold(threshold);
    // Under full emulation, stack walks and names take longer than a report's deadline.
    let emulated = std::env::var_os("CORONER_TEST_EMULATED").is_some();
    let config = if emulated {
        let limits = Limits::new().deadline(Duration::from_mins(1));
        config.limits(limits).crashes(Crashes::new().symbol_names(false))
    } else {
        config
    };
    let coroner = coroner::install(config.delivery(Delivery::new().at_install(false))).expect("installed");
    let run = store.join("runs").join(coroner.run_id().to_string());
    let last = coroner.last_run();
    println!("last run: {:?} {}", last.outcome, last.event_id.map_or_else(String::new, |id| id.to_string()));
    let program = Program { coroner, run, threshold };
    let watch = HangWatch::new();
    match words.iter().position(|word| word == "in-thread") {
        None => program.run(&watch, &words),
        Some(place) => {
            program.run(&watch, &words[..place]);
            std::thread::scope(|scope| {
                let rest = || program.run(&HangWatch::new(), &words[place + 1..]);
                let worker = std::thread::Builder::new().name("worker".into()).spawn_scoped(scope, rest).unwrap();
                while !worker.is_finished() {
                    watch.beat();
                    std::thread::sleep(threshold / 10);
                }
            });
        }
    }
}

impl Program {
    fn run(&self, watch: &HangWatch, words: &[String]) {
        for word in words {
            let (word, time) = word.split_once('=').unwrap_or((word, "0"));
            let time = Duration::from_millis(time.parse().expect("milliseconds"));
            match word {
                "silent" => {
                    let before = hang::reports(&self.run).len();
                    watch.beat();
                    does_not_answer(&|| hang::reports(&self.run).len() > before);
                    watch.beat();
                    let ended = || hang::facts(&self.run).is_some_and(|facts| facts.lifecycle.hang_since.is_none());
                    while !ended() {
                        watch.beat();
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    watch.idle();
                }
                "forever" | "noted" => {
                    let before = hang::reports(&self.run).len();
                    watch.beat();
                    match word {
                        "noted" => does_not_answer(&|| {
                            hang::facts(&self.run).is_some_and(|facts| facts.lifecycle.hang_since.is_some())
                        }),
                        _ => does_not_answer(&|| hang::reports(&self.run).len() > before),
                    }
                    println!("hangs");
                    loop {
                        std::thread::park();
                    }
                }
                "silent-for" => {
                    watch.beat();
                    std::thread::sleep(time);
                }
                "beat-for" => {
                    let until = Instant::now() + time;
                    while Instant::now() < until {
                        let _busy = watch.busy();
                        std::thread::sleep(self.threshold / 10);
                    }
                    watch.idle();
                }
                "idle-for" => {
                    watch.idle();
                    std::thread::sleep(time);
                }
                "works-for" => {
                    spins(time);
                    std::hint::black_box(());
                }
                "reads-for" => {
                    waits_in_read(time);
                    std::hint::black_box(());
                }
                "ends-hang" => {
                    watch.idle();
                    while hang::facts(&self.run).is_some_and(|facts| facts.lifecycle.hang_since.is_some()) {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                }
                "begins-hang" => watch.beat(),
                "stopped" => {
                    watch.beat();
                    std::thread::sleep(self.threshold / 2);
                    // SAFETY: a signal to this process, which the test continues.
                    unsafe { libc::kill(libc::getpid(), libc::SIGSTOP) };
                    std::thread::sleep(self.threshold / 10);
                    watch.idle();
                }
                #[cfg(target_os = "macos")]
                "main-queue-for" => {
                    let until = Instant::now() + time;
                    main_queue::work_while(|| Instant::now() < until);
                }
                #[cfg(target_os = "macos")]
                "stuck" => {
                    does_not_answer(&|| !hang::reports(&self.run).is_empty());
                    let ended = || hang::facts(&self.run).is_some_and(|facts| facts.lifecycle.hang_since.is_none());
                    main_queue::work_while(|| !ended());
                }
                "flush" => println!("flushed: {}", self.coroner.flush(Duration::from_mins(1))),
                "uninstall" => self.coroner.clone().uninstall(),
                other => panic!("unknown word: {other}"),
            }
        }
    }
}

/// Sends no heartbeat, in a function with this name, until the watchdog has recorded the hang.
#[inline(never)]
fn does_not_answer(written: &dyn Fn() -> bool) {
    hang::wait_until("the hang is written down", written);
    // Not a tail call: this function must be on the stack.
    std::hint::black_box(());
}

/// Uses the processor for this long, in a function with this name.
#[inline(never)]
fn spins(time: Duration) {
    let until = Instant::now() + time;
    let mut number = 1_u64;
    while Instant::now() < until {
        number = std::hint::black_box(number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
}

/// Blocks in read(2) for this long.
#[inline(never)]
fn waits_in_read(time: Duration) {
    use std::io::{Read, Write};
    let (mut reader, mut writer) = std::io::pipe().expect("a pipe");
    let late = std::thread::spawn(move || {
        std::thread::sleep(time);
        writer.write_all(b"x").expect("written");
    });
    let mut byte = [0];
    reader.read_exact(&mut byte).expect("read");
    late.join().expect("ended");
}

/// Works on the main queue like a run loop.
#[cfg(target_os = "macos")]
mod main_queue {
    use std::ffi::c_void;
    use std::time::Duration;

    unsafe extern "C" {
        /// From libdispatch's private.h: called by CFRunLoop when the main queue has work.
        fn _dispatch_main_queue_callback_4CF(message: *mut c_void);
    }

    pub(super) fn work_while(more: impl Fn() -> bool) {
        while more() {
            // SAFETY: on the main thread.
            unsafe { _dispatch_main_queue_callback_4CF(std::ptr::null_mut()) };
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
