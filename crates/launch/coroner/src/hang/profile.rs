//! What a thread does while it hangs: its stack, sampled, as a tree of bounded size, and written behind the hang's report from time to time, so
//! that it is there whoever ends the process.
//!
//! Samples are taken 20 times a second at first, more seldom the longer the hang lasts, down to one a second, and never so often that they
//! take more than a two-hundredth of the time. Each stands for the time since the one before it.

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

/// The shortest and the longest time between two samples.
const MIN_INTERVAL: Duration = Duration::from_millis(50);
const MAX_INTERVAL: Duration = Duration::from_secs(1);
/// How often a hang has been sampled by the time at which the pause is the longest.
const SLOWING: u32 = 20;
/// The part of a processor's time that samples may take.
const SHARE: u32 = 200;
/// When nothing more is learned by more samples.
const ENOUGH: Duration = Duration::from_mins(10);
/// When it is written for the first time; then at the double of each time.
const FIRST_WRITE: Duration = Duration::from_millis(200);
/// Most nodes of the tree, and most different ends.
const NODES: usize = 2500;
const ENDS: usize = 500;
/// What a profile of that size takes encoded, and more.
const BUFFER: usize = 96 << 10;

/// The samples of one hang.
#[derive(Debug)]
pub(super) struct Sampler {
    thread: ThreadId,
    /// The hang's report, to whose end is written, once it is there.
    file: Option<File>,
    began: Instant,
    last: Instant,
    next: Instant,
    write_at: Duration,
    /// Where the thread's clocks stood at the last sample.
    clocks: Option<os::Clocks>,
    nodes: Vec<ProfileNode>,
    by_call: HashMap<(u32, u64), u32>,
    ends: HashMap<(u32, u8, Option<i64>), (u64, u64)>,
    samples: u64,
    failed: u64,
    is_written: bool,
    waits_in: WaitsIn,
}

/// The system call that a thread waits in. One that had to begin to wait anew after a stop, as each sample is, is another to the kernel.
#[derive(Debug, Default)]
struct WaitsIn(Option<i64>);

impl WaitsIn {
    #[cfg(all(supported, not(target_vendor = "apple")))]
    const RESTART: Option<i64> = Some(libc::SYS_restart_syscall);
    #[cfg(any(target_vendor = "apple", not(supported)))]
    const RESTART: Option<i64> = None;

    /// What the kernel says, or what was restarted, if that is known.
    fn of(&mut self, said: Option<i64>) -> Option<i64> {
        if said.is_none() || said != Self::RESTART {
            self.0 = said;
        }
        self.0
    }
}

impl Sampler {
    /// Begins to sample a thread.
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

    /// When it is to be called again.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    /// Writes to the end of `file` from now on, which is the hang's report.
    pub(super) fn attach(&mut self, file: File) {
        self.file = Some(file);
    }

    /// Takes a sample, if it is time for one. False if the thread has gone on meanwhile, as `hangs` says of it: where it was is not where
    /// it hung.
    pub(super) fn sample(&mut self, hangs: impl Fn() -> bool) -> bool {
        let now = Instant::now();
        if now < self.next {
            return true;
        }
        let interval = ((now - self.began) / SLOWING).clamp(MIN_INTERVAL, MAX_INTERVAL);
        // A process that was stopped has a pause that is nobody's time.
        let weight = (now - self.last).clamp(Duration::from_nanos(1), interval * 4);
        self.last = now;
        let spent = thread_time();
        // Before the thread is stopped, which changes what it does.
        let clocks = os::clocks(self.thread);
        let (state, syscall) = os::activity(self.thread, self.clocks.as_ref().zip(clocks.as_ref()));
        let syscall = self.waits_in.of(syscall);
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
        // The process that traces the thread takes about as much as this thread.
        let spent = thread_time().saturating_sub(spent) * 2;
        self.next = now + interval.max(spent * SHARE);
        let elapsed = self.last - self.began;
        if elapsed >= self.write_at {
            while self.write_at <= elapsed {
                self.write_at *= 2;
            }
            self.write();
        }
        if elapsed >= ENOUGH {
            self.write();
            self.next = now + Duration::from_hours(24);
        }
        true
    }

    /// The node of a stack's innermost frame; of one that finds no room, of the last caller that is there.
    fn node(&mut self, backtrace: &Backtrace) -> u32 {
        let mut parent = 0;
        for (place, address) in backtrace.addresses().iter().enumerate().rev() {
            let call = (parent, *address);
            parent = match self.by_call.get(&call) {
                Some(known) => *known,
                None if self.nodes.len() >= NODES => break,
                None => {
                    let is_instruction = backtrace.lookup_address(place) == Some(*address);
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
        if self.ends.len() >= ENDS && !self.ends.contains_key(&end) {
            // Time that stands nowhere would change the weights of all else.
            end = (0, 0, None);
        }
        let (samples, weights) = self.ends.entry(end).or_default();
        *samples += 1;
        *weights += weight.as_nanos() as u64;
    }

    /// Writes what there is behind the report. What can't be written is lost; the report is there.
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
            // One call, so that all of it is in the file or nothing, whenever the process is killed.
            let _ = file.write_all(&bytes[..length]);
        }
    }
}

#[cfg(test)]
mod tests;
