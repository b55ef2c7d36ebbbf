//! Takes the reports of a process's children out of the file in its run
//! ([`coroner_report::child_slots`]), into runs of their own.
//!
//! Any process that delivers does so, also while the process lives that the run belongs to. The
//! file's lock excludes other processes.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coroner_report::child_slots::{
    FILE, HEADER, LEFT_OUT_WORD, MAGIC, MAGIC_WORD, MAX_BYTES, MAX_SLOTS, REPORT_WORD, RUN, SLOTS_WORD,
    STATE_SIZE_WORD, STATE_WORD, STATUS, Sizes, TIME, USED, entry, status,
};
use coroner_report::model::Id;

use super::directory::{Directory, punch_hole, try_lock};
use super::layout::{LOCK, REPORT, STATE, name_of};

/// Time after which a child that hasn't finished its report has been killed.
const MAX_WRITING: Duration = Duration::from_mins(1);

/// Excludes the other threads of this process, which a file's lock doesn't.
static TAKING: Mutex<()> = Mutex::new(());

/// A file with children's reports.
struct Slots {
    file: File,
    header: Vec<u8>,
    sizes: Sizes,
    /// Number of slots.
    count: usize,
}

impl Slots {
    /// Opens the file in a run's directory; `None` if there is none, or it has another layout.
    fn open(run: &Directory, write: bool) -> io::Result<Option<Self>> {
        let file = match run.file(OsStr::new(FILE), write) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut header = vec![0; USED];
        file.read_exact_at(&mut header, 0)?;
        let word = |number: usize| word(&header, number) as usize;
        let (count, sizes) = (word(SLOTS_WORD), Sizes { report: word(REPORT_WORD), state: word(STATE_WORD) });
        let is_sound = word(MAGIC_WORD) == MAGIC as usize
            && count <= MAX_SLOTS
            && [sizes.report, sizes.state].iter().all(|size| size.is_multiple_of(HEADER) && *size <= MAX_BYTES)
            && word(STATE_SIZE_WORD) <= sizes.state
            && file.metadata()?.len() >= sizes.offset(count) as u64;
        Ok(is_sound.then_some(Self { file, header, sizes, count }))
    }

    fn word(&self, number: usize) -> u32 {
        word(&self.header, number)
    }

    /// Sets a word of the header, for all processes that have mapped the file.
    fn set_word(&self, number: usize, value: u32) -> io::Result<()> {
        self.file.write_all_at(&value.to_ne_bytes(), number as u64 * 4)
    }

    /// Returns the time at which a slot was claimed.
    fn time(&self, slot: usize) -> SystemTime {
        let [low, high] = [TIME, TIME + 1].map(|word| u64::from(self.word(entry(slot) + word)));
        UNIX_EPOCH + Duration::from_nanos(low | high << 32)
    }

    /// Whether a child is still writing its report into the slot.
    fn is_being_written(&self, slot: usize, now: SystemTime) -> bool {
        let age = now.duration_since(self.time(slot)).unwrap_or(Duration::ZERO);
        self.word(entry(slot) + STATUS) == status::CLAIMED && age < MAX_WRITING
    }

    fn is_used(&self, slot: usize) -> bool {
        matches!(self.word(entry(slot) + STATUS), status::CLAIMED | status::FINISHED)
    }

    /// Copies a slot into a run of its own; returns the run.
    fn copy(&self, slot: usize, runs: &Directory) -> io::Result<Id> {
        let mut id = [0; 16];
        for (bytes, word) in id.as_chunks_mut::<4>().0.iter_mut().zip(RUN..) {
            bytes.copy_from_slice(&self.word(entry(slot) + word).to_ne_bytes());
        }
        let id = Id(id);
        let read = |at: usize, size: usize| {
            let mut bytes = vec![0; size];
            self.file.read_exact_at(&mut bytes, at as u64).map(|()| bytes)
        };
        let at = self.sizes.offset(slot);
        let mut report = read(at, self.sizes.report)?;
        report.truncate(report.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
        let state = read(at + self.sizes.report, self.word(STATE_SIZE_WORD) as usize)?;
        let run = runs.create_subdirectory(&name_of(id))?;
        if run.status_of(STATE.as_ref()).is_ok() {
            // An earlier attempt was interrupted before it freed the slot.
            return Ok(id);
        }
        // Other processes wait for this lock, and for the state, which is written last.
        run.write_quickly(LOCK.as_ref(), b"")?;
        let lock = run.file(LOCK.as_ref(), true)?;
        try_lock(&lock)?;
        run.write_quickly(REPORT.as_ref(), &report)?;
        run.write_quickly(STATE.as_ref(), &state)?;
        lock.set_modified(self.time(slot))?;
        Ok(id)
    }

    /// Frees a slot for the next child.
    fn free(&self, slot: usize) -> io::Result<()> {
        let (at, size) = (self.sizes.offset(slot), self.sizes.report + self.sizes.state);
        if punch_hole(&self.file, at as u64, size as u64).is_err() {
            self.file.write_all_at(&vec![0; size], at as u64)?;
        }
        self.set_word(entry(slot) + STATUS, status::FREE)
    }
}

fn word(header: &[u8], number: usize) -> u32 {
    header.get(number * 4..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_ne_bytes(*word))
}

/// Takes the finished reports of its children out of a run; returns their runs.
///
/// # Errors
/// The failed call's error. The reports that were not taken out are still there.
pub(super) fn take_out(runs: &Directory, run: &Directory) -> io::Result<Vec<Id>> {
    let mut taken = Vec::new();
    let Ok(_exclusive) = TAKING.try_lock() else { return Ok(taken) };
    let Some(slots) = Slots::open(run, true)? else { return Ok(taken) };
    let now = SystemTime::now();
    let is_due = |slots: &Slots, slot| slots.is_used(slot) && !slots.is_being_written(slot, now);
    if !(0..slots.count).any(|slot| is_due(&slots, slot)) || !try_lock(&slots.file)? {
        return Ok(taken);
    }
    // Another process may have had the lock until now.
    let mut slots = slots;
    slots.file.read_exact_at(&mut slots.header, 0)?;
    for slot in (0..slots.count).filter(|slot| is_due(&slots, *slot)) {
        taken.push(slots.copy(slot, runs)?);
        slots.free(slot)?;
    }
    Ok(taken)
}

/// Whether a run's file contains reports, or a child is writing one.
pub(super) fn is_used(run: &Directory) -> bool {
    let slots = Slots::open(run, false);
    slots.is_ok_and(|slots| slots.is_some_and(|slots| (0..slots.count).any(|slot| slots.is_used(slot))))
}

/// Returns the number of children's crashes that left no report, because no slot was free.
pub(super) fn left_out(run: &Directory) -> u64 {
    let slots = Slots::open(run, false);
    slots.map_or(0, |slots| slots.map_or(0, |slots| slots.word(LEFT_OUT_WORD).into()))
}
