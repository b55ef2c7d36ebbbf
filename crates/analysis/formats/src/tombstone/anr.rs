//! Reads ANR traces, which ART writes about all threads upon SIGQUIT.
//!
//! They are in `/data/anr`, or in `ApplicationExitInfo` with `REASON_ANR`.
//!
//! ```text
//! ----- pid 1234 at 2022-10-03 16:52:23.938520831+0200 -----
//! Cmd line: com.example.shop
//! …
//! "main" prio=5 tid=1 Native
//!   | sysTid=1234 nice=-10 …
//!   native: #00 pc 000000000009d234  /apex/com.android.runtime/lib64/bionic/libc.so (read+4)
//!   at com.example.Shop.open(Shop.java:12)
//!   - waiting to lock <0x0d3a2f0a> (a java.lang.Object) held by thread 5
//! ```
//!
//! Native frames come before Java frames, innermost first. If ART doesn't respond either, the
//! system writes where each thread waits in the kernel (`Waiting Channels`), which then is its only
//! frame.

use coroner_process::registers::Arch;
use coroner_report::model::{Annotation, AppFacts, Frame, Hang, Header, Lifecycle, Problem, Report, RunFacts, Thread};
use coroner_report::run_state::ExitKind;
use coroner_report::wire::{CaptureMethod, FORMAT_VERSION, FoundBy, Monitor, Os, ThreadState};

use crate::tombstone::proto::BacktraceFrame;
use crate::tombstone::report::{Images, parse_fingerprint};
use crate::tombstone::{MAX_FRAMES, MAX_THREADS, java, text, time};

const HEAD: &[u8] = b"----- pid ";
const CHANNELS: &str = "----- Waiting Channels: pid ";
const THREADS: &[u8] = b"DALVIK THREADS";

/// Returns the offset at which a trace starts.
pub(crate) fn begins(bytes: &[u8]) -> Option<usize> {
    let start = bytes.get(..1 << 20).unwrap_or(bytes);
    let find = |mark: &[u8]| start.windows(mark.len()).position(|window| window == mark);
    find(HEAD).or_else(|| find(CHANNELS.as_bytes())).or_else(|| find(THREADS))
}

struct Parser {
    report: Report,
    timestamp: String,
    fingerprint: String,
    /// The thread being read, with ART's number.
    thread: Option<(Thread, u64)>,
    native: Vec<BacktraceFrame>,
    images: Images,
    /// Waits for monitors: the thread's number in ART, and the line.
    waits: Vec<(u64, String)>,
    /// Pairs of ART's thread number and the system's thread id.
    tids: Vec<(u64, u64)>,
    /// Threads with the place in the kernel where they wait.
    channels: Vec<Thread>,
    is_channels: bool,
}

/// Converts a trace to a report about a hang of the main thread. If it contains several processes,
/// only the first is read.
pub(crate) fn report(bytes: &[u8]) -> Report {
    let text = String::from_utf8_lossy(bytes);
    let mut parser = Parser {
        report: Report::default(),
        timestamp: String::new(),
        fingerprint: String::new(),
        thread: None,
        native: Vec::new(),
        images: Images::default(),
        waits: Vec::new(),
        tids: Vec::new(),
        channels: Vec::new(),
        is_channels: false,
    };
    let mut stacks = 0;
    for line in text.lines() {
        let head = line.trim_start().strip_prefix("----- pid ");
        let channels = line.trim_start().strip_prefix(CHANNELS);
        if let Some(rest) = head.or(channels) {
            parser.end_thread();
            stacks += usize::from(head.is_some());
            // Another process, or the same one again as seen by the kernel.
            let is_other = !parser.channels.is_empty() && parser.report.header.pid != pid(rest);
            if stacks > 1 || is_other || (channels.is_some() && !parser.report.threads.is_empty()) {
                break;
            }
            parser.is_channels = channels.is_some();
            parser.process(rest);
        } else {
            parser.line(line);
        }
    }
    parser.finish()
}

/// Parses `1234 at 2022-10-03 16:52:23.938520831+0200 -----`.
fn pid(rest: &str) -> u32 {
    rest.split_whitespace().next().and_then(|pid| pid.parse().ok()).unwrap_or(0)
}

impl Parser {
    fn process(&mut self, rest: &str) {
        let (_, time) = rest.split_once(" at ").unwrap_or((rest, ""));
        self.report.header.pid = pid(rest);
        self.timestamp = time.trim_end().trim_end_matches('-').trim().to_owned();
    }

    fn line(&mut self, line: &str) {
        let text = line.trim();
        if line.starts_with('"') {
            self.end_thread();
            self.begin_thread(line);
            return;
        }
        if let Some(subject) = text.strip_prefix("Subject: ").filter(|_| self.thread.is_none()) {
            self.report.crash.get_or_insert_default().message = Some(subject.to_owned());
        } else if let Some(name) = text.strip_prefix("Cmd line: ") {
            name.clone_into(&mut self.report.header.process_name);
        } else if let Some(fingerprint) = text.strip_prefix("Build fingerprint: ") {
            fingerprint.trim_matches('\'').clone_into(&mut self.fingerprint);
        } else if let Some(abi) = text.strip_prefix("ABI: ") {
            self.report.header.arch = match abi.trim_matches('\'') {
                "arm64" => Some(Arch::Aarch64),
                "x86_64" => Some(Arch::X86_64),
                _ => None,
            };
        } else if self.is_channels && text.starts_with("sysTid=") {
            self.channel(text);
        } else if let Some((thread, art)) = &mut self.thread {
            if let Some(facts) = text.strip_prefix("| ") {
                parse_facts(thread, facts);
            } else if let Some(frame) = java::frame(text) {
                if thread.frames.len() < MAX_FRAMES {
                    thread.frames.push(frame);
                }
            } else if let Some(frame) = text::frame(text.strip_prefix("native: ").unwrap_or(text)) {
                if self.native.len() < MAX_FRAMES {
                    self.native.push(frame);
                }
            } else if let Some(wait) = text.strip_prefix("- ").filter(|wait| !wait.starts_with("locked")) {
                self.waits.push((*art, wait.to_owned()));
            }
        }
    }

    /// Parses `"main" daemon prio=5 tid=1 Native`; debuggerd writes `"main" sysTid=1234`.
    fn begin_thread(&mut self, line: &str) {
        let Some((name, rest)) = line[1..].rsplit_once('"') else { return };
        let art = rest.split_once("tid=").and_then(|(_, rest)| {
            rest.split(|character: char| !character.is_ascii_digit()).next().and_then(|number| number.parse().ok())
        });
        let state = rest.split_once("tid=").and_then(|(_, rest)| rest.split_whitespace().nth(1));
        let thread = Thread {
            tid: rest.trim().strip_prefix("sysTid=").and_then(|tid| tid.parse().ok()).unwrap_or(0),
            name: Some(name.to_owned()),
            state: Some(if state == Some("Runnable") { ThreadState::RUNNING } else { ThreadState::BLOCKED }),
            captured_by: Some(CaptureMethod::SIGNAL),
            ..Thread::default()
        };
        self.thread = Some((thread, art.unwrap_or(0)));
    }

    /// Parses `sysTid=15992  do_sigtimedwait`.
    fn channel(&mut self, text: &str) {
        let Some((tid, function)) = text["sysTid=".len()..].split_once(char::is_whitespace) else { return };
        let Ok(tid) = tid.parse() else { return };
        let function = Some(function.trim()).filter(|function| !function.is_empty() && *function != "0");
        let frame = function.map(|function| Frame {
            found_by: FoundBy::CONTEXT,
            module: Some("kernel".to_owned()),
            function: Some(function.to_owned()),
            ..Frame::default()
        });
        if self.channels.len() < MAX_THREADS {
            self.channels.push(Thread { tid, frames: frame.into_iter().collect(), ..Thread::default() });
        }
    }

    fn end_thread(&mut self) {
        let native = std::mem::take(&mut self.native);
        let Some((mut thread, art)) = self.thread.take() else { return };
        if self.report.threads.len() >= MAX_THREADS {
            return;
        }
        let managed = std::mem::take(&mut thread.frames);
        thread.frames = self.images.frames(&native, None);
        thread.frames.extend(managed);
        self.tids.push((art, thread.tid));
        self.report.threads.push(thread);
    }

    /// Adds the threads of which only the place in the kernel is known.
    fn add_channels(&mut self) {
        let threads = &mut self.report.threads;
        for channel in std::mem::take(&mut self.channels) {
            match threads.iter_mut().find(|thread| thread.tid == channel.tid) {
                Some(thread) if thread.frames.is_empty() => thread.frames = channel.frames,
                Some(_) => {}
                None => threads.push(channel),
            }
        }
    }

    fn finish(mut self) -> Report {
        self.end_thread();
        self.add_channels();
        let time = time::parse(&self.timestamp).unwrap_or_default();
        let (os, mut device) = parse_fingerprint(&self.fingerprint);
        let mut report = self.report;
        device.arch = report.header.arch.map(|arch| arch.name().to_owned());
        // A trace without its head, as some Android versions provide to the app, still contains its
        // main thread.
        let main =
            report.threads.iter().position(|thread| thread.tid != 0 && thread.tid == u64::from(report.header.pid));
        let main = main.or_else(|| report.threads.iter().position(|thread| thread.name.as_deref() == Some("main")));
        if let Some(place) = main {
            let mut thread = report.threads.remove(place);
            (thread.main, thread.crashed) = (true, true);
            if report.header.pid == 0 {
                report.header.pid = thread.tid as u32;
            }
            report.threads.insert(0, thread);
        }
        let crash = report.crash.get_or_insert_default();
        crash.time = time;
        crash.monitor = Monitor::HANG;
        crash.tid = report.threads.first().map_or(0, |thread| thread.tid);
        crash.hang = Some(Hang::default());
        for (art, wait) in self.waits {
            let tid = |art: u64| self.tids.iter().find(|(number, _)| *number == art).map_or(0, |(_, tid)| *tid);
            let name = |tid: u64| {
                report.threads.iter().find(|thread| thread.tid == tid).and_then(|thread| thread.name.clone())
            };
            let who = |art: u64| format!("thread {} \"{}\"", tid(art), name(tid(art)).unwrap_or_default());
            let text =
                match wait.rsplit_once(" held by thread ").and_then(|(what, art)| Some((what, art.parse().ok()?))) {
                    Some((what, holder)) => format!("{}: {what}, held by {}", who(art), who(holder)),
                    None => format!("{}: {wait}", who(art)),
                };
            report.annotations.push(Annotation { source: "ART: monitor".to_owned(), text, ..Annotation::default() });
        }
        report.complete = true;
        report.header = Header { format_version: FORMAT_VERSION, os: Os::ANDROID, ..report.header };
        report.images = self.images.images;
        if !report.images.is_empty() {
            let what = "the trace has no memory map: only the native frames' offsets in their images are real, the addresses are made up";
            report.problems.push(Problem { section: None, offset: 0, what: what.to_owned() });
        }
        report.attribute_frames();
        let name = Some(report.header.process_name.clone()).filter(|name| !name.is_empty());
        report.run = Some(RunFacts {
            app: AppFacts { id: name.clone(), process_name: name, pid: Some(report.header.pid), ..AppFacts::default() },
            os,
            device,
            lifecycle: Lifecycle { exit: ExitKind::RUNNING, hang_since: Some(time), ..Lifecycle::default() },
            ..RunFacts::default()
        });
        report
    }
}

/// Parses `sysTid=15987 nice=-10 cgrp=system …`, `state=S schedstat=( … ) utm=574 stm=13 …`.
fn parse_facts(thread: &mut Thread, facts: &str) {
    let number = |key: &str| facts.split_whitespace().find_map(|word| word.strip_prefix(key)?.parse::<u64>().ok());
    if let Some(tid) = number("sysTid=") {
        thread.tid = tid;
    }
    if let Some(state) = facts.strip_prefix("state=") {
        thread.state = match state.as_bytes().first() {
            Some(b'R') => Some(ThreadState::RUNNING),
            Some(b'S') => Some(ThreadState::BLOCKED),
            Some(b'D') => Some(ThreadState::UNINTERRUPTIBLE),
            Some(b'T' | b't') => Some(ThreadState::STOPPED),
            _ => thread.state,
        };
    }
}
