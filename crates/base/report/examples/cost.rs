//! Measures the cost of the run state for its caller, and of the encoder for the crash path.
//!
//! Run it with `--release`.

use coroner_process::registers::X86_64Registers;
use coroner_report::Report;
use coroner_report::run_state::{Breadcrumb, Kind, Level, Limits, ProcessIdentity, RunState};
use coroner_report::wire::{
    self, AddressKind, Encoder, FoundBy, Frame, Registers, SectionKind, Thread, ThreadEncoder, WalkEnd, crc32c,
};
use std::hint::black_box;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

/// Returns the nanoseconds per call: the best of nine rounds.
fn cost(name: &str, calls: u32, mut call: impl FnMut(u32)) -> f64 {
    let best = (0..9)
        .map(|_| {
            let start = Instant::now();
            (0..calls).for_each(&mut call);
            start.elapsed()
        })
        .min()
        .unwrap_or_default();
    let ns = best.as_secs_f64() * 1e9 / f64::from(calls);
    println!("{name:<55} {ns:>10.1} ns");
    ns
}

fn main() {
    let limits = Limits::default();
    let words: Vec<AtomicU64> = (0..limits.size() / 8).map(|_| AtomicU64::new(0)).collect();
    let Ok(state) = RunState::create(&words, &limits, [1; 16], &ProcessIdentity::default()) else { return };
    for i in 0..40 {
        let _ = state.set_text(Kind::TAG, &format!("some tag {i}"), "value");
    }
    println!("run state: {} KiB", limits.size() >> 10);
    cost("tag, key of 9 and value of 16 bytes", 100_000, |_| {
        let _ = black_box(state.set_text(Kind::TAG, black_box("user.tier"), black_box("enterprise-gold1")));
    });
    let long = "x".repeat(200);
    cost("tag, key of 20 and value of 200 bytes", 100_000, |_| {
        let _ = black_box(state.set_text(Kind::TAG, black_box("organisation.context"), black_box(&long)));
    });
    let keys: Vec<String> = (0..40).map(|i| format!("some tag {i}")).collect();
    cost("tag, each time another of 40 keys", 100_000, |i| {
        let _ = black_box(state.set_text(Kind::TAG, &keys[i as usize % 40], black_box("enterprise-gold1")));
    });
    let map = vec![0xA0; 1024];
    cost("context of 1 KiB", 10_000, |_| {
        let _ = black_box(state.set_cbor(Kind::CONTEXT, "game", black_box(&map)));
    });
    cost("breadcrumb, category of 8 and message of 60 bytes", 100_000, |i| {
        state.breadcrumb(&Breadcrumb {
            time_ns: 1_790_000_000_000_000_000 + u64::from(i),
            level: Level::INFO,
            kind: "http",
            category: "ui.click",
            message: black_box("the user pressed the button that everybody always presses ok"),
            data: None,
        });
    });
    cost("breadcrumb, message of 200 bytes", 100_000, |i| {
        state.breadcrumb(&Breadcrumb {
            time_ns: u64::from(i),
            category: "ui.click",
            message: black_box(&long),
            ..Breadcrumb::default()
        });
    });
    cost("scalar", 1_000_000, |i| {
        state.set_scalar(black_box(coroner_report::run_state::Scalar::LAST_ALIVE), u64::from(i));
    });

    let mut buffer = vec![0; 1 << 20];
    let registers = X86_64Registers { gpr: std::array::from_fn(|i| 0x7F00_1234_5678 + i as u64), pc: 1, flags: 2 };
    let mut len = 0;
    cost("thread of 16 frames with registers, encoded", 1000, |tid| {
        let mut encoder = Encoder::new(&mut buffer);
        let thread = Thread {
            tid: 70_000 + u64::from(tid),
            name: Some(b"worker-thread-1"),
            registers: Some(Registers::from(&registers)),
            ..Thread::default()
        };
        if let Some(mut thread) = ThreadEncoder::begin(&mut encoder, &thread) {
            for frame in 0..16 {
                let sp = 0x7F00_0010_0000 + frame * 96;
                thread.frame(&Frame {
                    pc: 0x7F12_3456_7890 + frame,
                    found_by: FoundBy::CFI,
                    address_kind: AddressKind::RETURN,
                    sp: Some(sp),
                    cfa: Some(sp + 96),
                });
            }
            thread.finish(WalkEnd::ROOT);
        }
        len = encoder.position();
        black_box(encoder.written());
    });
    println!("{:<55} {len:>10} bytes", "the same, encoded");
    let bytes = vec![0x5A; 64 << 10];
    let ns = cost("checksum of 64 KiB", 100, |_| {
        let _ = black_box(crc32c(0, black_box(&bytes)));
    });
    println!("{:<55} {:>10.2} GB/s", "the same", 65.536 / ns * 1000.0);

    // Reads a report with a thousand threads.
    let mut file = wire::FILE_PREFIX.to_vec();
    let one = buffer[..len].to_vec();
    let mut payload = vec![0x9F];
    for tid in 0..1000u32 {
        // The thread's number: key 0, then a 32-bit number.
        let mut thread = one.clone();
        if let Some(number) = thread.get_mut(3..7) {
            number.copy_from_slice(&(0x1_0000 + tid).to_be_bytes());
        }
        payload.extend_from_slice(&thread);
    }
    payload.push(0xFF);
    file.extend_from_slice(&wire::seal_header(SectionKind::THREADS, &payload).unwrap_or_default());
    file.extend_from_slice(&payload);
    let mut threads = 0;
    cost("report of 1,000 threads of 16 frames, read", 3, |_| {
        threads = Report::read(black_box(&file)).map_or(0, |report| report.threads.len());
    });
    assert_eq!(threads, 1000);
}
