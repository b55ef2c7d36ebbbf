//! Reads the messages of systemd-coredump in the journal.
//!
//! ```text
//! Nov 21 10:11:12 host systemd-coredump[835]: Process 797 (paint) of user 1000 dumped core.
//!
//!                                             Stack trace of thread 797:
//!                                             #0  0x00007f6184b7826c n/a (libc.so.6 + 0x8926c)
//!                                             #1  0x00007f6184b28a08 raise (libc.so.6 + 0x39a08)
//!                                             ELF object binary architecture: AMD x86-64
//! ```
//!
//! The message has no signal. Source: `src/coredump/coredump.c` and `src/shared/elf-util.c` of
//! systemd.

use coroner_process::registers::Arch;
use coroner_report::model::{Address, Crash, Frame, Image, Thread};
use coroner_report::wire::{AddressKind, FoundBy, ImageKind, Monitor};

use super::lines::Lines;
use super::{Death, Found, MAX_FRAMES, MAX_LINES, address};
use crate::{MAX_IMAGES, MAX_THREADS};

const HEAD: &str = "Process ";
const MARK: &str = " dumped core.";
const THREAD: &str = "Stack trace of thread ";

pub(super) fn head(line: &str) -> Option<usize> {
    let at = line.find(HEAD).filter(|_| line.trim_end().ends_with(MARK))?;
    process(&line[at..]).map(|_| at)
}

/// Parses `Process 797 (paint) of user 1000 dumped core.`
fn process(text: &str) -> Option<(u32, &str)> {
    let (pid, rest) = text.strip_prefix(HEAD)?.split_once(" (")?;
    Some((pid.parse().ok()?, rest.rsplit_once(") of user ")?.0))
}

pub(super) fn read(mut lines: Lines<'_>) -> Option<Found<'_>> {
    let first = lines.next()?;
    let (pid, name) = process(&first.text)?;
    let mut threads: Vec<Thread> = Vec::new();
    let mut images: Vec<Image> = Vec::new();
    let mut arch = None;
    for _ in 0..MAX_LINES {
        let before = lines;
        let Some(line) = lines.next() else { break };
        let text = line.text.trim();
        if let Some(tid) = text.strip_prefix(THREAD) {
            let tid = tid.trim_end_matches(':').parse().unwrap_or_default();
            let crashed = threads.is_empty();
            if threads.len() < MAX_THREADS {
                threads.push(Thread { tid, crashed, main: tid == u64::from(pid), ..Thread::default() });
            }
        } else if let Some(named) = text.strip_prefix("ELF object binary architecture: ") {
            arch = match named {
                "AMD x86-64" => Some(Arch::X86_64),
                "AARCH64" => Some(Arch::Aarch64),
                _ => None,
            };
            break;
        } else if let Some(thread) = threads.last_mut().filter(|_| text.starts_with('#')) {
            if thread.frames.len() < MAX_FRAMES {
                thread.frames.extend(frame(text, thread.frames.is_empty(), &mut images));
            }
        } else if !text.is_empty() && !text.starts_with("Module ") && !line.text.starts_with([' ', '\t']) {
            lines = before;
            break;
        }
    }
    let problem = threads.is_empty().then(|| format!("after line {}: the message has no stack", first.number));
    let crash =
        Crash { monitor: Monitor::SIGNAL, tid: threads.first().map_or(0, |thread| thread.tid), ..Crash::default() };
    let name = Some(name.to_owned());
    let death = Death { crash, threads, images, arch, pid: Some(pid), name, problem, ..Death::default() };
    Some(Found { death, rest: lines })
}

/// Parses `#1  0x00007f6184b28a08 raise (libc.so.6 + 0x39a08)`.
fn frame(text: &str, is_first: bool, images: &mut Vec<Image>) -> Option<Frame> {
    let (_, rest) = text.strip_prefix('#')?.split_once(' ')?;
    let (at, rest) = address(rest.trim())?;
    let (name, place) = rest.trim().rsplit_once(" (").map(|(name, place)| (name, place.trim_end_matches(')')))?;
    let (module, offset) = place.rsplit_once(" + ").unwrap_or((place, ""));
    if let Some((offset, _)) = address(offset) {
        let start = at.wrapping_sub(offset);
        let size = offset.saturating_add(1);
        match images.iter().position(|image| image.load_address.0 == start) {
            Some(place) => images[place].size = images[place].size.max(size),
            None if images.len() < MAX_IMAGES => images.push(Image {
                kind: ImageKind::ELF,
                path: module.to_owned(),
                load_address: Address(start),
                slide: Address(start),
                size,
                ..Image::default()
            }),
            None => {}
        }
    }
    Some(Frame {
        address: Address(at),
        found_by: if is_first { FoundBy::CONTEXT } else { FoundBy::CFI },
        address_kind: if is_first { AddressKind::INSTRUCTION } else { AddressKind::RETURN },
        module: Some(module.to_owned()).filter(|module| module != "n/a"),
        function: Some(name.to_owned()).filter(|name| name != "n/a"),
        in_app: Some(!["libc.so", "ld-linux", "libpthread"].iter().any(|system| module.starts_with(system))),
        ..Frame::default()
    })
}
