//! A hanging thread's profile: samples of its stack, as a tree of bounded size.
//!
//! The profile is appended to the hang's report from time to time, so that it exists however the
//! process ends. Samples are taken 20 times per second at first and once per second later, and take
//! at most 1/200 of the time. Each sample's weight is the time since the previous one.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

use coroner_report::wire::{
    AddressKind, Encoder, FRAME_HEADER_LEN, Profile, ProfileEnd, ProfileNode, SectionKind, ThreadState, seal,
};

use super::os;
use crate::backtrace::{Backtrace, CaptureOptions, ThreadId};
use crate::clock::thread_time;

/// Minimum and maximum time between two samples.
const MIN_INTERVAL: Duration = Duration::from_millis(50);
const MAX_INTERVAL: Duration = Duration::from_secs(1);
/// A hang's age divided by this is the time between two samples.
const AGE_DIVISOR: u32 = 20;
/// Samples may take one part in this many of the time.
const MAX_COST_DIVISOR: u32 = 200;
/// Age of a hang after which no more samples are taken.
const MAX_AGE: Duration = Duration::from_mins(10);
/// Age of a hang at the first write; each following write is at twice the age of the previous one.
const FIRST_WRITE: Duration = Duration::from_millis(200);
/// Maximum number of nodes in the tree, and of distinct ends.
const MAX_NODES: usize = 2500;
const MAX_ENDS: usize = 500;
/// Buffer size in bytes; larger than any encoded profile.
const BUFFER: usize = 96 << 10;

/// The samples of one hang.
#[derive(Debug)]
pub(super) struct Sampler {
    thread: ThreadId,
    /// The hang's report, once written, to which the profile is appended.
    file: Option<File>,
    began: Instant,
    last: Instant,
    next: Instant,
    write_at: Duration,
    /// The thread's clocks at the last sample.
    clocks: Option<os::Clocks>,
    nodes: Vec<ProfileNode>,
    by_call: HashMap<(u32, u64), u32>,
    ends: HashMap<(u32, u8, Option<i64>), (u64, u64)>,
    samples: u64,
    failed: u64,
    is_written: bool,
    waits_in: WaitsIn,
}

/// The system call that a thread waits in.
///
/// After each stop of the thread, as for a sample, the kernel reports the restarted wait as another
/// call.
#[derive(Debug, Default)]
struct WaitsIn(Option<i64>);

impl WaitsIn {
    #[cfg(all(supported, not(target_vendor = "apple")))]
    const RESTART: Option<i64> = Some(libc::SYS_restart_syscall);
    #[cfg(any(target_vendor = "apple", not(supported)))]
    const RESTART: Option<i64> = None;

    /// Returns the call that the kernel reports or, for a restart, the restarted call if known.
    fn resolve(&mut self, reported: Option<i64>) -> Option<i64> {
        if reported.is_none() || reported != Self::RESTART {
            self.0 = reported;
        }
        self.0
    }
}

impl Sampler {
    /// Starts to sample a thread.
    pub(super) fn new(thread: ThreadId) -> Self {
        let now = Instant::now();
        Self {
            thread,
            file: None,
            began: now,
            last: now,
            next: now,
            write_at: FIRST_WRITE,
            clocks: os::clocks(thread),
            nodes: Vec::new(),
            by_call: HashMap::new(),
            ends: HashMap::new(),
            samples: 0,
            failed: 0,
            is_written: true,
            waits_in: WaitsIn::default(),
        }
    }

    /// Returns when the next sample is due.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    /// Sets the file that the profile is appended to, which is the hang's report.
    pub(super) fn attach(&mut self, file: File) {
        self.file = Some(file);
    }

    /// Takes a sample if one is due.
    ///
    /// Returns `false` if the thread has continued in the meantime, according to `hangs`. The
    /// sample is then discarded.
    pub(super) fn sample(&mut self, hangs: impl Fn() -> bool) -> bool {
        let now = Instant::now();
        if now < self.next {
            return true;
        }
        let interval = ((now - self.began) / AGE_DIVISOR).clamp(MIN_INTERVAL, MAX_INTERVAL);
        // Time in which the process was stopped doesn't count.
        let weight = (now - self.last).clamp(Duration::from_nanos(1), interval * 4);
        self.last = now;
        let spent = thread_time();
        // Read it before the thread is stopped, which changes it.
        let clocks = os::clocks(self.thread);
        let (state, syscall) = os::activity(self.thread, self.clocks.as_ref().zip(clocks.as_ref()));
        let syscall = self.waits_in.resolve(syscall);
        self.clocks = clocks;
        let options = CaptureOptions { by_ptrace: true, ..CaptureOptions::default() };
        let sample = Backtrace::of_thread(self.thread, &options);
        if !hangs() {
            return false;
        }
        match sample {
            Ok(backtrace) => {
                let node = self.node(&backtrace);
                self.add(node, state, syscall, weight);
            }
            Err(_) => self.failed += 1,
        }
        // The process that traces the thread takes about as long as this thread.
        let spent = thread_time().saturating_sub(spent) * 2;
        self.next = now + interval.max(spent * MAX_COST_DIVISOR);
        let elapsed = self.last - self.began;
        if elapsed >= self.write_at {
            while self.write_at <= elapsed {
                self.write_at *= 2;
            }
            self.write();
        }
        if elapsed >= MAX_AGE {
            self.write();
            self.next = now + Duration::from_hours(24);
        }
        true
    }

    /// Returns the node of a stack's innermost frame or, if the tree is full, of the innermost
    /// caller that has one.
    fn node(&mut self, backtrace: &Backtrace) -> u32 {
        let mut parent = 0;
        for (index, address) in backtrace.addresses().iter().enumerate().rev() {
            let call = (parent, *address);
            parent = match self.by_call.get(&call) {
                Some(known) => *known,
                None if self.nodes.len() >= MAX_NODES => break,
                None => {
                    let is_instruction = backtrace.lookup_address(index) == Some(*address);
                    let kind = if is_instruction { AddressKind::INSTRUCTION } else { AddressKind::RETURN };
                    self.nodes.push(ProfileNode { parent, address: *address, kind });
                    let number = self.nodes.len() as u32;
                    self.by_call.insert(call, number);
                    number
                }
            };
        }
        parent
    }

    fn add(&mut self, node: u32, state: ThreadState, syscall: Option<i64>, weight: Duration) {
        self.is_written = false;
        self.samples += 1;
        let mut end = (node, state.0, syscall);
        if self.ends.len() >= MAX_ENDS && !self.ends.contains_key(&end) {
            // Without this time, the weights of all others would be wrong.
            end = (0, 0, None);
        }
        let (samples, weights) = self.ends.entry(end).or_default();
        *samples += 1;
        *weights += weight.as_nanos() as u64;
    }

    /// Appends the profile to the report. If it can't be written, it is lost, but not the report.
    pub(super) fn write(&mut self) {
        let Some(mut file) = self.file.as_ref() else { return };
        if std::mem::replace(&mut self.is_written, true) {
            return;
        }
        let ends = self.ends.iter().map(|((node, state, syscall), (samples, weight_ns))| ProfileEnd {
            node: *node,
            state: ThreadState(*state),
            syscall: *syscall,
            samples: *samples,
            weight_ns: *weight_ns,
        });
        let mut ends: Vec<ProfileEnd> = ends.collect();
        ends.sort_unstable_by_key(|end| (end.node, end.state.0, end.syscall));
        let profile = Profile {
            tid: self.thread as u64,
            samples: self.samples,
            sampled_ns: (self.last - self.began).as_nanos() as u64,
            nodes: &self.nodes,
            ends: &ends,
            failed: self.failed,
        };
        let mut bytes = vec![0; BUFFER];
        let mut encoder = Encoder::new(&mut bytes[FRAME_HEADER_LEN..]);
        profile.encode(&mut encoder);
        if encoder.overflowed() {
            return;
        }
        let length = encoder.position();
        if let Some(length) = seal(&mut bytes, SectionKind::PROFILE, length) {
            // One call, so that the file contains all of it or nothing, even if the process is
            // killed.
            let _ = file.write_all(&bytes[..length]);
        }
    }
}

#[cfg(test)]
mod tests;
