//! The on-disk queue, so that nothing is lost between a crash and the next connection.
//!
//! ```text
//! <outbox>/
//!   queue/<made>-<tries>-<not before>-<event>-<session>.<extension>
//!   given-up/…    messages that a server refused
//!   state.json    what the sink keeps beside them: ids of what was sent, limits
//!   consent       what the user said
//!   declined      its time is that of the last refusal
//!   lock          held for moments, while `state.json` is changed
//!   sending.lock  held by the process that sends
//! ```
//!
//! Where files can't be locked, `lock.held` and `sending.lock.held` replace the lock files
//! ([`gate`](crate::gate)).
//!
//! All metadata of a message is in its file name, and changes by renaming, which is atomic.
//! Messages appear under their names complete. Several processes of an app may share an outbox: all
//! may add messages, one sends.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::files::{
    CONSENT, TEMPORARY, is_passing, open_file, own_directory, remove, remove_foreign, write_atomically,
};
use crate::gate::{Entered, Gate};
use crate::locked::locked;
use crate::waits::MAX_WAIT;

/// Number of ids of sent messages that are kept to detect duplicates.
const REMEMBERED: usize = 200;
/// Start of 2025, in milliseconds since the Unix epoch. An earlier time means a wrong clock (a
/// machine without a clock battery starts at 1970).
const FIRST_MS: u64 = 1_735_689_600_000;
/// Maximum size of a message that is read back, in bytes.
const LARGEST: u64 = 256 << 20;

/// Limits on an outbox's contents. The oldest messages are removed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboxLimits {
    /// Maximum number of messages. Default: 100.
    pub number: usize,
    /// Maximum age of a message that has been tried. Default: 30 days.
    ///
    /// Because the clock may be wrong, a message is only removed after it has been considered too
    /// old for this time again.
    pub age: Duration,
    /// Maximum total size of all messages, in bytes. Default: 64 MiB.
    pub bytes: u64,
}

impl Default for OutboxLimits {
    fn default() -> Self {
        Self { number: 100, age: Duration::from_hours(30 * 24), bytes: 64 << 20 }
    }
}

/// Ids of the last 200 sent messages, to detect duplicates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SentIds(Vec<String>);

impl SentIds {
    /// Returns `true` if `id` was recorded.
    pub fn contains(&self, id: &str) -> bool {
        self.0.iter().any(|sent| sent == id)
    }

    /// Records an id.
    pub fn note(&mut self, id: &str) {
        if !self.contains(id) {
            self.0.push(id.to_owned());
            let excess = self.0.len().saturating_sub(REMEMBERED);
            self.0.drain(..excess);
        }
    }

    /// Returns the number of ids.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `true` if there are no ids.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A queued message's metadata, from its file name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// When the message was queued: milliseconds since the Unix epoch.
    pub made_ms: u64,
    /// Number of failed attempts to send it.
    pub tries: u32,
    /// Earliest time of the next attempt: seconds since the Unix epoch.
    pub not_before: u64,
    /// The id of the message's event.
    pub event_id: String,
    /// The session that the message ends, as 32 digits; empty if none.
    ///
    /// It is always empty except for Sentry, and also empty if the server may have received its
    /// update already.
    pub session: String,
}

impl Entry {
    fn file_name(&self, extension: &str) -> String {
        let Self { made_ms, tries, not_before, event_id, session } = self;
        let session = if session.is_empty() { "0" } else { session };
        format!("{made_ms:013}-{tries}-{not_before}-{event_id}-{session}.{extension}")
    }

    fn parse(name: &str, extension: &str) -> Option<Self> {
        let mut parts = name.strip_suffix(extension)?.strip_suffix('.')?.split('-');
        let entry = Self {
            made_ms: parts.next()?.parse().ok()?,
            tries: parts.next()?.parse().ok()?,
            not_before: parts.next()?.parse().ok()?,
            event_id: parts.next()?.to_owned(),
            session: parts.next().map(|session| if session == "0" { String::new() } else { session.to_owned() })?,
        };
        // A different spelling of the same numbers would be a different file.
        (parts.next().is_none() && entry.file_name(extension) == name).then_some(entry)
    }

    /// Returns how long the message still has to wait. A time more than [`MAX_WAIT`] ahead was
    /// written with a different clock and is ignored.
    pub fn wait(&self, now: SystemTime) -> Option<Duration> {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let wait = Duration::from_secs(self.not_before).checked_sub(now)?;
        (!wait.is_zero() && wait <= MAX_WAIT).then_some(wait)
    }

    fn made(&self) -> SystemTime {
        UNIX_EPOCH.checked_add(Duration::from_millis(self.made_ms)).unwrap_or(UNIX_EPOCH)
    }

    /// Whether the message is older than `limit` by the clock. `false` for messages that have not
    /// been tried or date from before 2025: the clock may be or have been wrong, and they are not
    /// removed for that.
    fn is_too_old(&self, limit: Duration, now: SystemTime) -> bool {
        let was_tried = self.tries > 0 || self.not_before > 0;
        // A time in the future (a clock set back) doesn't count as old.
        was_tried && self.made_ms >= FIRST_MS && now.duration_since(self.made()).unwrap_or_default() > limit
    }
}

/// The outcome of queueing a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// The message was queued.
    Added,
    /// The message is already queued, was given up, or was sent before.
    Known,
    /// The message was not queued because the user has refused consent.
    Refused,
}

/// An open outbox. Two in one process for the same directory share their state.
#[derive(Debug, Clone)]
pub struct Outbox {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    /// The file extension of messages.
    extension: &'static str,
    /// A file whose record lock excludes other processes, and a mutex that excludes this process's
    /// threads. The file must not be opened twice: closing any of its descriptors releases all of
    /// the process's record locks on it.
    lock: Mutex<Gate>,
    sending: Mutex<Gate>,
    /// The time of the last message, in milliseconds since the epoch.
    last_made_ms: AtomicU64,
}

impl Shared {
    /// Returns the time to name a message by: messages of the same millisecond keep their order,
    /// whatever number of tries their names have.
    fn made_now(&self, now_ms: u64) -> u64 {
        let after = |last: u64| if last.saturating_sub(now_ms) < 1000 { now_ms.max(last + 1) } else { now_ms };
        let mut last = self.last_made_ms.load(Ordering::Relaxed);
        loop {
            match self.last_made_ms.compare_exchange(last, after(last), Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return after(last),
                Err(now) => last = now,
            }
        }
    }
}

/// A process's open outboxes.
struct Open {
    process: u32,
    outboxes: Mutex<Vec<Weak<Shared>>>,
}

impl Open {
    /// Returns the list for this process. A child created by `fork` starts its own list and opens
    /// its outboxes itself, because the parent's list and outboxes may be locked by a thread that
    /// doesn't exist in the child.
    fn current_process() -> &'static Self {
        static OPEN: AtomicPtr<Open> = AtomicPtr::new(ptr::null_mut());
        let process = std::process::id();
        loop {
            let open = OPEN.load(Ordering::Acquire);
            // SAFETY: null, or from `Box::into_raw` below, and never freed once stored.
            if let Some(open) = unsafe { open.as_ref() }.filter(|open| open.process == process) {
                return open;
            }
            let new = Box::into_raw(Box::new(Self { process, outboxes: Mutex::default() }));
            if OPEN.compare_exchange(open, new, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                // SAFETY: created above and not shared.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }
}

/// The exclusive right to send, held by one thread of one process until dropped.
#[derive(Debug)]
pub struct Sending<'a> {
    _entered: Entered<'a>,
}

const QUEUE: &str = "queue";
const GIVEN_UP: &str = "given-up";
const STATE: &str = "state.json";

impl Outbox {
    /// Opens the outbox in the directory `path`, creating it if necessary.
    ///
    /// The directory is accessible only to its owner. If it is a link or belongs to another user,
    /// it is renamed, and a new one is created. Messages are files with the given extension.
    ///
    /// # Errors
    /// An I/O error if the directory or its files can't be created or opened.
    pub fn open(path: &Path, extension: &'static str) -> io::Result<Self> {
        for directory in [path.to_owned(), path.join(QUEUE), path.join(GIVEN_UP)] {
            own_directory(&directory)?;
        }
        for name in [STATE, CONSENT] {
            remove_foreign(&path.join(name))?;
        }
        let path = fs::canonicalize(path)?;
        let mut open = locked(&Open::current_process().outboxes);
        open.retain(|shared| shared.strong_count() > 0);
        if let Some(shared) = open.iter().filter_map(Weak::upgrade).find(|shared| shared.path == path) {
            return Ok(Self { shared });
        }
        let shared = Arc::new(Shared {
            lock: Mutex::new(Gate::open(&path, "lock")?),
            sending: Mutex::new(Gate::open(&path, "sending.lock")?),
            path,
            extension,
            last_made_ms: AtomicU64::new(0),
        });
        open.push(Arc::downgrade(&shared));
        Ok(Self { shared })
    }

    /// Returns the outbox's directory.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Acquires the right to send; `None` while another process holds it.
    pub fn try_send(&self) -> Option<Sending<'_>> {
        Some(Sending { _entered: Entered::at_once(locked(&self.shared.sending))? })
    }

    fn path_of(&self, folder: &str, entry: &Entry) -> PathBuf {
        self.shared.path.join(folder).join(entry.file_name(self.shared.extension))
    }

    /// Changes the state under a lock. If the process is killed during the change, the previous
    /// state remains.
    ///
    /// # Errors
    /// An I/O error if the state can't be read at present, or can't be written.
    pub fn update<S, R>(&self, change: impl FnOnce(&mut S) -> R) -> io::Result<R>
    where
        S: Serialize + DeserializeOwned + Default + Clone + PartialEq,
    {
        let _entered = Entered::wait(locked(&self.shared.lock))?;
        self.try_read_state().and_then(|before: S| {
            let mut state = before.clone();
            let result = change(&mut state);
            if state != before {
                let bytes = serde_json::to_vec(&state).map_err(io::Error::other)?;
                write_atomically(&self.shared.path, STATE, &bytes)?;
            }
            Ok(result)
        })
    }

    /// Reads the state. A damaged file counts as empty: counts and limits are lost, and messages
    /// may be sent again with their old ids.
    pub fn read_state<S: DeserializeOwned + Default>(&self) -> S {
        self.try_read_state().unwrap_or_default()
    }

    /// Like [`read_state`](Self::read_state), for a change.
    ///
    /// A state that can't be read at present must not be overwritten.
    fn try_read_state<S: DeserializeOwned + Default>(&self) -> io::Result<S> {
        let bytes = match open_file(&self.shared.path.join(STATE)).and_then(read_whole) {
            Err(error) if is_passing(&error) => return Err(error),
            bytes => bytes.unwrap_or_default(),
        };
        Ok(serde_json::from_slice(&bytes).unwrap_or_default())
    }

    /// Durably queues a message, unless it is a duplicate or the user has refused.
    ///
    /// A message is a duplicate if its event is already queued or was given up. `session` is the
    /// session that the message ends; empty if none.
    ///
    /// # Errors
    /// An I/O error if the message can't be written.
    pub fn push(&self, event_id: &str, session: &str, message: &[u8], now: SystemTime) -> io::Result<Pushed> {
        self.push_unless(event_id, session, message, now, || self.is_refused())
    }

    /// Like [`push`](Self::push), for a message about a report, unless `is_declined`, for example
    /// by [`is_declined`](Self::is_declined).
    ///
    /// # Errors
    /// An I/O error if the message can't be written.
    pub fn push_unless(
        &self,
        event_id: &str,
        session: &str,
        message: &[u8],
        now: SystemTime,
        is_declined: impl Fn() -> io::Result<bool>,
    ) -> io::Result<Pushed> {
        if self.holds(event_id)? {
            return Ok(Pushed::Known);
        }
        let made_ms = self.shared.made_now(now.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64);
        let (event_id, session) = (event_id.to_owned(), session.to_owned());
        let entry = Entry { made_ms, tries: 0, not_before: 0, event_id, session };
        let queue = self.shared.path.join(QUEUE);
        write_atomically(&queue, &entry.file_name(self.shared.extension), message)?;
        // The user may have refused in the meantime, after which the older messages were removed.
        if is_declined().unwrap_or(false) {
            self.remove(&entry)?;
            return Ok(Pushed::Refused);
        }
        Ok(Pushed::Added)
    }

    /// Whether a message of the event is queued or was given up.
    fn holds(&self, event_id: &str) -> io::Result<bool> {
        let is = |entry: &Entry| entry.event_id == event_id;
        Ok(self.list(QUEUE)?.iter().any(is) || self.list(GIVEN_UP)?.iter().any(is))
    }

    /// Returns the queued messages, oldest first.
    ///
    /// # Errors
    /// An I/O error if the directory can't be listed.
    pub fn queue(&self) -> io::Result<Vec<Entry>> {
        self.list(QUEUE)
    }

    /// Returns the messages that were given up, oldest first.
    ///
    /// # Errors
    /// An I/O error if the directory can't be listed.
    pub fn given_up(&self) -> io::Result<Vec<Entry>> {
        self.list(GIVEN_UP)
    }

    fn list(&self, folder: &str) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for file in fs::read_dir(self.shared.path.join(folder))? {
            let name = file?.file_name();
            entries.extend(name.to_str().and_then(|name| Entry::parse(name, self.shared.extension)));
        }
        entries.sort();
        Ok(entries)
    }

    /// Reads an entry's message; `None` if it was removed.
    ///
    /// # Errors
    /// An I/O error if the file can't be read.
    pub fn read(&self, entry: &Entry) -> io::Result<Option<Vec<u8>>> {
        match open_file(&self.path_of(QUEUE, entry)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            file => read_whole(file?).map(Some),
        }
    }

    /// Postpones an entry. Returns the renamed entry.
    ///
    /// # Errors
    /// An I/O error if the file can't be renamed.
    pub fn put_off(&self, entry: &Entry, tries: u32, not_before: SystemTime) -> io::Result<Entry> {
        let not_before = not_before.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.rename(entry, Entry { tries, not_before, ..entry.clone() })
    }

    /// Sets the session whose update an entry's message carries; an empty text for none. Returns
    /// the renamed entry.
    ///
    /// # Errors
    /// An I/O error if the file can't be renamed.
    pub fn set_session(&self, entry: &Entry, session: &str) -> io::Result<Entry> {
        self.rename(entry, Entry { session: session.to_owned(), ..entry.clone() })
    }

    /// Renames an entry. An entry that was removed in the meantime (by a refusal or the limits)
    /// stays removed.
    fn rename(&self, entry: &Entry, other: Entry) -> io::Result<Entry> {
        move_file(&self.path_of(QUEUE, entry), &self.path_of(QUEUE, &other))?;
        Ok(other)
    }

    /// Removes an entry that was sent. The caller must record its id first.
    ///
    /// # Errors
    /// An I/O error if the file can't be removed.
    pub fn remove(&self, entry: &Entry) -> io::Result<()> {
        remove(&self.path_of(QUEUE, entry))
    }

    /// Sets an entry aside; it isn't retried automatically.
    ///
    /// # Errors
    /// An I/O error if the file can't be moved.
    pub fn give_up(&self, entry: &Entry) -> io::Result<()> {
        move_file(&self.path_of(QUEUE, entry), &self.path_of(GIVEN_UP, entry))
    }

    /// Returns all entries that were given up to the queue, and makes all queued entries due now.
    ///
    /// The server that refused them has been replaced.
    ///
    /// # Errors
    /// An I/O error if a file can't be moved.
    pub fn revive(&self) -> io::Result<()> {
        for entry in self.list(GIVEN_UP)? {
            let again = Entry { tries: 0, not_before: 0, ..entry.clone() };
            move_file(&self.path_of(GIVEN_UP, &entry), &self.path_of(QUEUE, &again))?;
        }
        for entry in self.list(QUEUE)?.iter().filter(|entry| entry.tries > 0 || entry.not_before > 0) {
            self.put_off(entry, 0, UNIX_EPOCH)?;
        }
        Ok(())
    }

    /// Removes all messages.
    ///
    /// # Errors
    /// An I/O error if something can't be removed.
    pub fn clear(&self) -> io::Result<()> {
        for folder in [QUEUE, GIVEN_UP] {
            for entry in self.list(folder)? {
                remove(&self.path_of(folder, &entry))?;
            }
        }
        clear_temporaries(&self.shared.path.join(QUEUE), Duration::ZERO)
    }

    /// Removes the oldest messages until the rest is within the limits.
    ///
    /// Starts with those given up; returns how many were removed. `lost` is called for each queued
    /// message, with its content if it can be read, before it is removed.
    ///
    /// # Errors
    /// An I/O error if something can't be listed or removed.
    pub fn enforce(
        &self,
        limits: &OutboxLimits,
        now: SystemTime,
        mut lost: impl FnMut(&Entry, Option<Vec<u8>>),
    ) -> io::Result<usize> {
        let mut all = Vec::new();
        for folder in [GIVEN_UP, QUEUE] {
            for entry in self.list(folder)? {
                let path = self.path_of(folder, &entry);
                let metadata = fs::symlink_metadata(&path).ok();
                let size = metadata.as_ref().map_or(0, fs::Metadata::len);
                let written = metadata.and_then(|metadata| metadata.modified().ok());
                let is_over = written.is_some_and(|written| is_over(&entry, &path, written, limits.age, now));
                all.push((folder, entry, path, size, is_over));
            }
        }
        let (mut number, mut bytes) = (all.len(), all.iter().map(|(.., size, _)| size).sum::<u64>());
        let mut gone = 0;
        for (folder, entry, path, size, is_over) in all {
            if number <= limits.number && bytes <= limits.bytes && !is_over {
                continue;
            }
            if folder == QUEUE {
                lost(&entry, self.read(&entry).ok().flatten());
            }
            remove(&path)?;
            number -= 1;
            bytes = bytes.saturating_sub(size);
            gone += 1;
        }
        for folder in [self.shared.path.clone(), self.shared.path.join(QUEUE)] {
            clear_temporaries(&folder, Duration::from_hours(1))?;
        }
        Ok(gone)
    }
}

/// Removes temporary files of at least the age `ago` from a folder.
///
/// Processes killed during a write leave them.
fn clear_temporaries(folder: &Path, ago: Duration) -> io::Result<()> {
    for file in fs::read_dir(folder)? {
        let file = file?;
        let is_temporary = file.file_name().as_encoded_bytes().starts_with(TEMPORARY.as_bytes());
        let age = file.metadata().and_then(|metadata| metadata.modified()).ok();
        let age = age.and_then(|modified| modified.elapsed().ok()).unwrap_or_default();
        if is_temporary && age >= ago {
            remove(&file.path())?;
        }
    }
    Ok(())
}

/// Whether a message has been considered too old for the time `limit`. With a clock that was set
/// ahead, it is too old at once and later it isn't. The file's modification time records since when
/// the message has been too old without interruption.
fn is_over(entry: &Entry, path: &Path, written: SystemTime, limit: Duration, now: SystemTime) -> bool {
    let is_too_old = entry.is_too_old(limit, now);
    let is_noted = entry.made().checked_add(limit).is_some_and(|end| written > end);
    let note = match (is_too_old, is_noted) {
        (true, true) if written <= now => return now.duration_since(written).is_ok_and(|time| time > limit),
        (true, _) => now,
        (false, true) => entry.made(),
        (false, false) => return false,
    };
    if let Err(error) = open_file(path).and_then(|file| file.set_modified(note)) {
        log::info!("coroner: can't record the age of report {}: {error}", entry.event_id);
    }
    false
}

/// Renames a file, if it exists.
fn move_file(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        renamed => renamed,
    }
}

fn read_whole(file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, LARGEST), &mut bytes)?;
    Ok(bytes)
}
