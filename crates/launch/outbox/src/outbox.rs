//! What waits to be sent, on the disk, so that nothing is lost between a crash and a server that is reached.
//!
//! ```text
//! <outbox>/
//!   queue/<made>-<tries>-<not before>-<event>-<session>.<extension>
//!   given-up/…    messages that a server refused
//!   state.json    what the sink keeps beside them: ids of what was sent, limits
//!   consent       what the user said
//!   lock          held for moments, while `state.json` is changed
//!   sending.lock  held by the process that sends
//! ```
//! Where no file may be locked, `lock.held` and `sending.lock.held` in their place ([`gate`](crate::gate)).
//!
//! All that is known of a message beside its bytes stands in its name, and changes by renaming, which happens or doesn't.
//! Messages appear under their names whole. Several processes of one app may share an outbox: all may add, one sends.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::files::{Change, is_passing, private_directories, sync_directory};
use crate::gate::{Entered, Gate};
use crate::locked::locked;
use crate::waits::MAX_WAIT;

/// Ids of what was sent that are kept, to tell what comes again.
const REMEMBERED: usize = 200;
/// Before this, 2025, no message was made: a clock that says so was wrong (a machine without a battery for it begins at 1970).
const FIRST_MS: u64 = 1_735_689_600_000;
/// Largest message read back.
const LARGEST: u64 = 256 << 20;

/// How much an outbox may hold. What is oldest goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboxLimits {
    /// Most messages. Default: 100.
    pub number: usize,
    /// Oldest message that has been tried. Default: 30 days. It is removed when the clock has said for as long again that it is older: the
    /// clock may be wrong.
    pub age: Duration,
    /// Most bytes, all messages together. Default: 64 MiB.
    pub bytes: u64,
}

impl Default for OutboxLimits {
    fn default() -> Self {
        Self { number: 100, age: Duration::from_hours(30 * 24), bytes: 64 << 20 }
    }
}

/// Ids of what was sent, to tell what comes again: the last 200.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SentIds(Vec<String>);

impl SentIds {
    /// Whether `id` is among them.
    pub fn contains(&self, id: &str) -> bool {
        self.0.iter().any(|sent| sent == id)
    }

    /// Adds one.
    pub fn note(&mut self, id: &str) {
        if !self.contains(id) {
            self.0.push(id.to_owned());
            let excess = self.0.len().saturating_sub(REMEMBERED);
            self.0.drain(..excess);
        }
    }

    /// How many they are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A message in the queue: what its name says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// When it was put there: milliseconds since the Unix epoch.
    pub made_ms: u64,
    /// How often sending it has failed.
    pub tries: u32,
    /// When it may be tried again: seconds since the Unix epoch.
    pub not_before: u64,
    /// The id of its event.
    pub event_id: String,
    /// The session that it ends, as 32 digits; empty if none, as in all protocols but Sentry's, or if the server may have it already.
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
        // Another way to write the same numbers would be another file.
        (parts.next().is_none() && entry.file_name(extension) == name).then_some(entry)
    }

    /// How long it has to wait still. A time that is days away was written under another clock.
    pub fn wait(&self, now: SystemTime) -> Option<Duration> {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let wait = Duration::from_secs(self.not_before).checked_sub(now)?;
        (!wait.is_zero() && wait <= MAX_WAIT).then_some(wait)
    }

    fn made(&self) -> SystemTime {
        UNIX_EPOCH.checked_add(Duration::from_millis(self.made_ms)).unwrap_or(UNIX_EPOCH)
    }

    /// Whether it is older than `limit`, by the clock. Of one that has not been tried, or was made before there were any, the clock that says so may be
    /// wrong, and was: it is not thrown away for it.
    fn is_too_old(&self, limit: Duration, now: SystemTime) -> bool {
        let was_tried = self.tries > 0 || self.not_before > 0;
        // A time in the future (a clock set back) is not old.
        was_tried && self.made_ms >= FIRST_MS && now.duration_since(self.made()).unwrap_or_default() > limit
    }
}

/// What came of putting a message into the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// It is there.
    Added,
    /// It was there already, or has been sent before.
    Known,
    /// The user does not agree: it is not there.
    Refused,
}

/// An outbox, held open. Two in one process for one directory are one.
#[derive(Debug, Clone)]
pub struct Outbox {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    /// That of a message's file.
    extension: &'static str,
    /// The file whose record lock keeps other processes out, and the mutex that keeps this one's threads out. The file must
    /// not be opened twice: closing one descriptor of a file loses a process all its record locks on it.
    lock: Mutex<Gate>,
    sending: Mutex<Gate>,
}

/// The outboxes that a process holds open.
struct Open {
    process: u32,
    outboxes: Mutex<Vec<Weak<Shared>>>,
}

impl Open {
    /// Those of this process. A child made by `fork` makes a list of its own, and opens its outboxes for itself: its parent's list, and
    /// each outbox in it, may be locked by a thread that the child does not have.
    fn of_this_process() -> &'static Self {
        static OPEN: AtomicPtr<Open> = AtomicPtr::new(ptr::null_mut());
        let process = std::process::id();
        loop {
            let open = OPEN.load(Ordering::Acquire);
            // SAFETY: null, or from `Box::into_raw` below, and never freed once it is stored.
            if let Some(open) = unsafe { open.as_ref() }.filter(|open| open.process == process) {
                return open;
            }
            let new = Box::into_raw(Box::new(Self { process, outboxes: Mutex::default() }));
            if OPEN.compare_exchange(open, new, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                // SAFETY: made above, and given to nobody.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }
}

/// The right to send, for one process and one thread, until dropped.
#[derive(Debug)]
pub struct Sending<'a> {
    _entered: Entered<'a>,
}

const QUEUE: &str = "queue";
const GIVEN_UP: &str = "given-up";
const STATE: &str = "state.json";

impl Outbox {
    /// Opens the outbox in the directory `path`, which is made where it does not exist, for its owner only. Its messages are files with
    /// that extension.
    ///
    /// # Errors
    /// It can't be made or opened.
    pub fn open(path: &Path, extension: &'static str) -> io::Result<Self> {
        let builder = private_directories();
        for directory in [path.to_owned(), path.join(QUEUE), path.join(GIVEN_UP)] {
            builder.create(directory)?;
        }
        let path = fs::canonicalize(path)?;
        let mut open = locked(&Open::of_this_process().outboxes);
        open.retain(|shared| shared.strong_count() > 0);
        if let Some(shared) = open.iter().filter_map(Weak::upgrade).find(|shared| shared.path == path) {
            return Ok(Self { shared });
        }
        let shared = Arc::new(Shared {
            lock: Mutex::new(Gate::open(&path, "lock")?),
            sending: Mutex::new(Gate::open(&path, "sending.lock")?),
            path,
            extension,
        });
        open.push(Arc::downgrade(&shared));
        Ok(Self { shared })
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// The right to send; `None` while another process has it.
    pub fn try_send(&self) -> Option<Sending<'_>> {
        Some(Sending { _entered: Entered::at_once(locked(&self.shared.sending))? })
    }

    fn path_of(&self, folder: &str, entry: &Entry) -> PathBuf {
        self.shared.path.join(folder).join(entry.file_name(self.shared.extension))
    }

    /// Reads and changes what is kept beside the messages; nobody else does meanwhile. Of a process killed in it, the state
    /// before stands.
    ///
    /// # Errors
    /// The state can't be read for now, or not written.
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

    /// What is kept beside the messages. A file that is damaged counts as none: what is lost with it are counts and limits,
    /// and what was sent may be sent again under its old id.
    pub fn read_state<S: DeserializeOwned + Default>(&self) -> S {
        self.try_read_state().unwrap_or_default()
    }

    /// The same, for a change: what can't be read for now must not be written anew.
    fn try_read_state<S: DeserializeOwned + Default>(&self) -> io::Result<S> {
        let bytes = match open_file(&self.shared.path.join(STATE)).and_then(read_whole) {
            Err(error) if is_passing(&error) => return Err(error),
            bytes => bytes.unwrap_or_default(),
        };
        Ok(serde_json::from_slice(&bytes).unwrap_or_default())
    }

    /// Puts a message into the queue, durably, unless one of that event is there or was given up, or the user has refused. `session` is the one that it
    /// ends, empty if none.
    ///
    /// # Errors
    /// It can't be written.
    pub fn push(&self, event_id: &str, session: &str, message: &[u8], now: SystemTime) -> io::Result<Pushed> {
        if self.holds(event_id)? {
            return Ok(Pushed::Known);
        }
        let made_ms = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        let (event_id, session) = (event_id.to_owned(), session.to_owned());
        let entry = Entry { made_ms, tries: 0, not_before: 0, event_id, session };
        let queue = self.shared.path.join(QUEUE);
        write_atomically(&queue, &entry.file_name(self.shared.extension), message)?;
        // A refusal may have come meanwhile, and have removed what was there before this one.
        if self.is_refused().unwrap_or(false) {
            self.remove(&entry)?;
            return Ok(Pushed::Refused);
        }
        Ok(Pushed::Added)
    }

    /// Whether a message of that event is in the queue or was given up.
    fn holds(&self, event_id: &str) -> io::Result<bool> {
        let is = |entry: &Entry| entry.event_id == event_id;
        Ok(self.list(QUEUE)?.iter().any(is) || self.list(GIVEN_UP)?.iter().any(is))
    }

    /// What is in the queue, oldest first.
    ///
    /// # Errors
    /// It can't be listed.
    pub fn queue(&self) -> io::Result<Vec<Entry>> {
        self.list(QUEUE)
    }

    /// What was given up, oldest first.
    ///
    /// # Errors
    /// It can't be listed.
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

    /// The message of an entry; `None` if it is gone.
    ///
    /// # Errors
    /// It can't be read.
    pub fn read(&self, entry: &Entry) -> io::Result<Option<Vec<u8>>> {
        match open_file(&self.path_of(QUEUE, entry)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            file => read_whole(file?).map(Some),
        }
    }

    /// Puts an entry off. Gives it as it is then.
    ///
    /// # Errors
    /// It can't be renamed.
    pub fn put_off(&self, entry: &Entry, tries: u32, not_before: SystemTime) -> io::Result<Entry> {
        let not_before = not_before.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.rename(entry, Entry { tries, not_before, ..entry.clone() })
    }

    /// Sets which session the message of an entry is to tell of; an empty text for none. Gives the entry as it is then.
    ///
    /// # Errors
    /// It can't be renamed.
    pub fn set_session(&self, entry: &Entry, session: &str) -> io::Result<Entry> {
        self.rename(entry, Entry { session: session.to_owned(), ..entry.clone() })
    }

    /// One that is gone meanwhile (a refusal, the limits) stays so.
    fn rename(&self, entry: &Entry, other: Entry) -> io::Result<Entry> {
        move_file(&self.path_of(QUEUE, entry), &self.path_of(QUEUE, &other))?;
        Ok(other)
    }

    /// Takes an entry out that has been sent. Note that it was, before.
    ///
    /// # Errors
    /// It can't be removed.
    pub fn remove(&self, entry: &Entry) -> io::Result<()> {
        remove(&self.path_of(QUEUE, entry))
    }

    /// Sets an entry aside that will not be sent again by itself.
    ///
    /// # Errors
    /// It can't be moved.
    pub fn give_up(&self, entry: &Entry) -> io::Result<()> {
        move_file(&self.path_of(QUEUE, entry), &self.path_of(GIVEN_UP, entry))
    }

    /// Puts all that was given up back into the queue, and has nothing wait there any longer: the server that refused it is no longer the one that is
    /// asked.
    ///
    /// # Errors
    /// It can't be moved.
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
    /// Something can't be removed.
    pub fn clear(&self) -> io::Result<()> {
        for folder in [QUEUE, GIVEN_UP] {
            for entry in self.list(folder)? {
                remove(&self.path_of(folder, &entry))?;
            }
        }
        clear_temporaries(&self.shared.path.join(QUEUE), Duration::ZERO)
    }

    /// Removes the oldest until what is left is within the limits, those that were given up first. `lost` is shown each that was
    /// still to be sent, with its message if that can be read, before it is removed. Says how many went.
    ///
    /// # Errors
    /// Something can't be listed or removed.
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

const TEMPORARY: &str = ".new-";

/// Removes what a process killed while it wrote has left in a folder, so long ago or longer.
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

/// Whether a message has been too old for as long as it may be old. A clock that was set ahead says at once that it is too old, and another
/// time that it is not: when it was first said, and not contradicted since, is the time that its file has as that of its last change.
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
        log::info!("coroner: the age of report {} can't be noted: {error}", entry.event_id);
    }
    false
}

/// Renames a file, if it is there.
fn move_file(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        renamed => renamed,
    }
}

/// Puts bytes under a name, whole and on the disk.
pub(crate) fn write_atomically(directory: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    // Made with mode 0600; removed when it can't be finished.
    let mut file = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(directory)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    let place = directory.join(name);
    if let Err(failed) = file.persist(&place) {
        // A directory in its place is nobody's of this program.
        if !fs::symlink_metadata(&place).is_ok_and(|metadata| metadata.is_dir()) {
            return Err(failed.error);
        }
        remove(&place)?;
        failed.file.persist(&place).map_err(|failed| failed.error)?;
    }
    sync_directory(directory)
}

/// Opens a file to be read. A link is not followed, and a pipe, which would never begin, is none.
pub(crate) fn open_file(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).neither_link_nor_pipe().open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a regular file"))
    }
}

fn read_whole(file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, LARGEST), &mut bytes)?;
    Ok(bytes)
}

/// Removes what is there, a directory with all that is in it.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(_) if fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir()) => fs::remove_dir_all(path),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
