//! A program whose threads are watched: `hang_program STORE THRESHOLD-MS [WORD…]`.
//!
//! Words, one after another: `silent` until the hang is written down, then alive until its end is; `forever`, which says `hangs` when
//! the hang is written down; `noted`, which says so as soon as the run state knows; `silent-for=MS`, `beat-for=MS` (a beat every
//! tenth of the threshold), `begins-hang`, `works-for=MS`, `reads-for=MS` (blocked in read(2)), `ends-hang`, `idle-for=MS`, `flush`, `uninstall`; `stopped`, which is silent for half of the threshold, stops the
//! process, and shows itself soon after it goes on. On macOS `main-queue-for=MS` works through the main queue, as a run loop does,
//! and `stuck` is `silent` without a beat. `in-thread` does the rest in a thread `worker`, while the main one goes on to beat. It
//! prints how the last run ended.

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
    // Where every instruction is emulated, walks and names take longer than a report may.
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
                    // SAFETY: a signal to this process, which somebody lets go on.
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
                other => panic!("no word: {other}"),
            }
        }
    }
}

/// Silent, in a function of this name, until the watchdog has written that down.
#[inline(never)]
fn does_not_answer(written: &dyn Fn() -> bool) {
    hang::wait_until("the hang is written down", written);
    // Not a tail call: this function is to be in the stack.
    std::hint::black_box(());
}

/// At work on a processor for so long, in a function of this name.
#[inline(never)]
fn spins(time: Duration) {
    let until = Instant::now() + time;
    let mut number = 1_u64;
    while Instant::now() < until {
        number = std::hint::black_box(number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
}

/// Blocked in read(2) for so long.
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

/// What a run loop does of the main queue.
#[cfg(target_os = "macos")]
mod main_queue {
    use std::ffi::c_void;
    use std::time::Duration;

    unsafe extern "C" {
        /// libdispatch's private.h: what CFRunLoop calls when the main queue has something to do.
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
