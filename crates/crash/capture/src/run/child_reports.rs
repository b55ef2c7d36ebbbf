//! Reports reserved for the children of this process.
//!
//! A worker of a pre-forking server drops its privileges, and can then create no file: it has
//! another user, root or mount namespace, may write no file, or has no descriptors left. Before the
//! process forks for the first time, it therefore creates a sparse file
//! ([`coroner_report::child_slots`]) in its run and maps it. Its children inherit the mapping, and
//! one that crashes claims a slot. Later forks cost nothing.
//!
//! The reports are delivered while the process lives: the last step of a report wakes the threads
//! that [`wait`] for it, in any process that has mapped the file.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use coroner_process::files::{self, Descriptor};
use coroner_process::path::Path;
use coroner_process::process;
use coroner_process::syscall::{Errno, Result};
use coroner_process::threads::wall_now;
use coroner_report::child_slots::{
    FILE, FINISHED_WORD, HEADER, LEFT_OUT_WORD, MAGIC, RUN, STATUS, Sizes, TIME, USED, entry, status,
};

use super::report_file::ReportFile;
use super::run_files::{NEW, RunFiles, in_store, random_id};

/// Address while there is no file.
const NONE: usize = 0;
/// Address while the file is being created, and after that failed.
const FAILED: usize = 1;

/// The file of one run.
#[derive(Debug, Default)]
pub(crate) struct ChildReports {
    /// Whether the process had a system call filter at install. A later one may kill the process
    /// for a call that the app doesn't make itself.
    is_filtered: bool,
    /// Address at which the file is mapped, or [`NONE`], or [`FAILED`].
    address: AtomicUsize,
    /// Device and inode of the store's directory of runs.
    runs: [AtomicU64; 2],
}

/// A claimed slot.
#[derive(Debug)]
pub(crate) struct ChildSlot {
    /// The slot's report and state.
    pub(crate) run: RunFiles,
    status: &'static AtomicU32,
}

impl ChildSlot {
    /// Passes the report on to the process that delivers it.
    pub(crate) fn finish(&self) {
        self.status.store(status::FINISHED, Ordering::Release);
    }
}

impl ChildReports {
    /// Returns the value for a process that may fork later.
    pub(crate) fn unprepared() -> ChildReports {
        ChildReports { is_filtered: process::has_seccomp_filter(), ..ChildReports::default() }
    }

    /// Whether the process may make system calls that the app doesn't make itself.
    pub(crate) fn may_ask(&self) -> bool {
        self.is_filtered || !process::has_seccomp_filter()
    }

    /// Returns `true` if nobody has tried to create the file.
    pub(crate) fn is_unprepared(&self) -> bool {
        self.address.load(Ordering::Relaxed) == NONE
    }

    /// Creates the file for the run `id` in the store, and maps it. A failure is final: children
    /// then have the run's spare report.
    pub(crate) fn prepare(&self, store: &CStr, id: &[u8; 16], sizes: &Sizes, state_size: usize) {
        let is_first = self.address.compare_exchange(NONE, FAILED, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if !is_first || !self.may_ask() {
            return;
        }
        let runs = files::status_of_target(in_store(store, &[b"runs"]).as_c_str());
        let mapped = runs.and_then(|runs| Ok((runs, create(store, id, sizes, state_size)?)));
        if let Ok((runs, address)) = mapped {
            for (word, value) in self.runs.iter().zip(identity(&runs)) {
                word.store(value, Ordering::Relaxed);
            }
            self.address.store(address, Ordering::Release);
        }
    }

    fn mapped(&self) -> Option<usize> {
        Some(self.address.load(Ordering::Acquire)).filter(|address| *address > FAILED)
    }

    /// Returns `true` if `address` is in the header of the mapped file.
    pub(crate) fn contains(&self, address: usize) -> bool {
        self.mapped().is_some_and(|start| (start..start + HEADER).contains(&address))
    }

    /// Returns a word of the header.
    fn word(&self, number: usize) -> Option<&'static AtomicU32> {
        let address = self.mapped()?;
        // SAFETY: inside the header's used bytes, aligned, and never unmapped while a run uses it;
        // all other processes access it as an atomic, too.
        (number < USED / 4).then(|| unsafe { &*((address + number * 4) as *const AtomicU32) })
    }

    /// Returns `false` if the store's path leads this process to another directory than before the
    /// fork: in another root or mount namespace.
    pub(crate) fn is_same_store(&self, store: &CStr) -> bool {
        let Some(_) = self.mapped() else { return true };
        let now = files::status_of_target(in_store(store, &[b"runs"]).as_c_str());
        now.is_ok_and(|now| {
            self.runs.iter().zip(identity(&now)).all(|(before, now)| before.load(Ordering::Relaxed) == now)
        })
    }

    /// Claims a slot for this process's crash. Returns `None` if there is none, or the disk has no
    /// room for it.
    pub(crate) fn claim(&self, sizes: &Sizes, state_size: usize) -> Option<ChildSlot> {
        let address = self.mapped()?;
        for slot in 0..sizes.slots() {
            let word = |number: usize| self.word(entry(slot) + number);
            let status = word(STATUS)?;
            let (free, claimed) = (status::FREE, status::CLAIMED);
            if status.compare_exchange(free, claimed, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                continue;
            }
            let (id, now) = (random_id(), wall_now());
            let values = [now as u32, (now >> 32) as u32].into_iter().enumerate().map(|(at, value)| (TIME + at, value));
            let id_words = id.as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word)).enumerate();
            for (at, value) in values.chain(id_words.map(|(at, value)| (RUN + at, value))) {
                word(at)?.store(value, Ordering::Release);
            }
            let at = address + sizes.offset(slot);
            // Linux before 5.14 doesn't populate, and has room most of the time.
            if matches!(files::populate(at, sizes.report + sizes.state), Err(Errno(libc::EFAULT | libc::ENOMEM))) {
                status.store(free, Ordering::Release);
                return None;
            }
            let report = ReportFile::mapped(at, sizes.report);
            let run = RunFiles::mapped(id, report, at + sizes.report, state_size);
            return Some(ChildSlot { run, status });
        }
        None
    }

    /// Counts a crash that leaves no report.
    pub(crate) fn count_left_out(&self) {
        if let Some(count) = self.word(LEFT_OUT_WORD) {
            count.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Counts a finished report, and wakes the threads that wait for one.
    pub(crate) fn note_finished(&self) {
        if let Some(count) = self.word(FINISHED_WORD) {
            count.fetch_add(1, Ordering::AcqRel);
        }
        self.wake();
    }

    /// Returns the number of finished reports; `None` without a file.
    pub(crate) fn finished(&self) -> Option<u32> {
        Some(self.word(FINISHED_WORD)?.load(Ordering::Acquire))
    }

    /// Waits while the number of finished reports is `seen`, at most `nanoseconds`; may return
    /// early.
    pub(crate) fn wait(&self, seen: u32, nanoseconds: u64) {
        if let Some(count) = self.word(FINISHED_WORD) {
            process::wait_for_shared_word(count, seen, nanoseconds);
        }
    }

    /// Wakes the threads that wait for a finished report.
    pub(crate) fn wake(&self) {
        if let Some(count) = self.word(FINISHED_WORD) {
            process::wake_all_processes(count);
        }
    }

    /// Closes and removes the file if no child has used it. Returns `false` if one has: its report
    /// is still to be delivered.
    pub(crate) fn retire(&self, store: &CStr, id: &[u8; 16], sizes: &Sizes) -> bool {
        if self.mapped().is_none() {
            return true;
        }
        let left_out = self.word(LEFT_OUT_WORD).is_some_and(|count| count.load(Ordering::Acquire) != 0);
        let change = |from, to| {
            let statuses = (0..sizes.slots()).filter_map(|slot| self.word(entry(slot) + STATUS));
            let is_changed =
                |status: &&AtomicU32| status.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            statuses.filter(is_changed).count()
        };
        if left_out || change(status::FREE, status::CLOSED) < sizes.slots() {
            change(status::CLOSED, status::FREE);
            return false;
        }
        files::unlink(Descriptor::WORKING_DIRECTORY, path(store, id).as_c_str(), 0);
        true
    }
}

fn identity(status: &libc::stat) -> [u64; 2] {
    [status.st_dev, status.st_ino]
}

fn path(store: &CStr, id: &[u8; 16]) -> coroner_process::path::LongPath {
    let id = Path::new().push_hex(id);
    in_store(store, &[b"runs/", id.as_c_str().to_bytes(), b"/", FILE.as_bytes()])
}

fn create(store: &CStr, id: &[u8; 16], sizes: &Sizes, state_size: usize) -> Result<usize> {
    let length = sizes.offset(sizes.slots());
    let header = [MAGIC, sizes.slots() as u32, sizes.report as u32, sizes.state as u32, state_size as u32];
    let path = path(store, id);
    let file = files::open(Descriptor::WORKING_DIRECTORY, path.as_c_str(), NEW | libc::O_NOFOLLOW, 0o600)?;
    let words = core::ptr::slice_from_raw_parts((&raw const header).cast::<u8>(), size_of_val(&header));
    // The header is on disk then, so that no child finds out that there is no room for it.
    let mapped = files::extend(&file, length as u64)
        .and_then(|()| files::write_at(&file, words, 0))
        .and_then(|_| files::map_file(&file, length));
    mapped.inspect_err(|_| files::unlink(Descriptor::WORKING_DIRECTORY, path.as_c_str(), 0))
}
