//! Reads a run state file, whatever state its process left it in.

use super::breadcrumb::{head, newest, split};
use super::checksum::mix;
use super::crash_record::{NotWhole, read_crash};
use super::identity::read_identity;
use super::layout::{
    BREADCRUMB_HEADER_WORDS, BREADCRUMB_WORD, CHECK_WORD, CLEARED_WORD, COMMITTED_WORD, CRASH_RECORDS, HEADER_WORDS,
    LIMITS_WORD, Layout, Limits, MAGIC, MAX_KEY, RUN_ID_WORD, SIZE_WORD, Table, VERSION, VERSION_WORD,
};
use super::numbers::{ExitKind, Foreground, Kind, Level, MAX_HANGS, Scalar, SessionStatus, ThermalState};
use super::slots::form;
use crate::model::{
    Address, AppFacts, Attachment, Breadcrumb, DeviceFacts, DeviceState, Id, Lifecycle, OsFacts, Problem, Processing,
    RunFacts, Session, Timestamp, Value, Vitals,
};
use crate::reader::{Fields, Limit, decode_item, read_bounded};
use crate::wire::{crc32c, keys};
use coroner_process::heap_sort;
use minicbor::Decoder;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::Path;

/// Maximum number of CBOR items in a value.
const ITEMS: usize = 1 << 16;

/// Why a file can't be read as a run state.
#[derive(Debug)]
#[non_exhaustive]
pub enum RunStateError {
    /// The file can't be read.
    File(crate::ReadError),
    /// The file is empty.
    Empty,
    /// The file was reserved but never written.
    Unwritten,
    /// The file has another format.
    NotARunState,
    /// The file has another layout version.
    OtherVersion {
        /// Version of the file.
        version: u32,
    },
    /// The header is damaged or truncated, so nothing else can be found.
    Damaged {
        /// Offset in the file, in bytes.
        offset: u64,
        /// The kind of damage.
        what: &'static str,
    },
}

impl std::error::Error for RunStateError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RunStateError::File(error) => Some(error),
            _ => None,
        }
    }
}

impl fmt::Display for RunStateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunStateError::File(error) => error.fmt(f),
            RunStateError::Empty => f.write_str("the run state is empty"),
            RunStateError::Unwritten => f.write_str("the run state was reserved but never written"),
            RunStateError::NotARunState => f.write_str("not a Coroner run state: wrong magic number"),
            RunStateError::OtherVersion { version } => {
                write!(f, "the run state is of version {version}; this program reads version {VERSION}")
            }
            RunStateError::Damaged { offset, what } => write!(f, "the run state is damaged at byte {offset}: {what}"),
        }
    }
}

impl RunFacts {
    /// Reads the run state in `bytes`. Zeros at its end may be omitted.
    ///
    /// # Errors
    /// [`RunStateError`] if `bytes` is not a run state or its header is damaged. Damage elsewhere
    /// is listed in [`problems`](RunFacts::problems).
    pub fn read(bytes: &[u8]) -> Result<RunFacts, RunStateError> {
        let file = Words(bytes);
        if bytes.is_empty() {
            return Err(RunStateError::Empty);
        }
        if !bytes.starts_with(MAGIC) {
            let unwritten = bytes.iter().all(|byte| *byte == 0);
            return Err(if unwritten { RunStateError::Unwritten } else { RunStateError::NotARunState });
        }
        let damaged = |word: usize, what| RunStateError::Damaged { offset: word as u64 * 8, what };
        if bytes.len() < HEADER_WORDS * 8 {
            return Err(damaged(bytes.len() / 8, "truncated header"));
        }
        let version = file.at(VERSION_WORD) as u32;
        if version != VERSION {
            return Err(RunStateError::OtherVersion { version });
        }
        let check = (VERSION_WORD..CHECK_WORD).fold(0, |check, index| crc32c(check, &file.at(index).to_le_bytes()));
        if u64::from(check) != file.at(CHECK_WORD) {
            return Err(damaged(CHECK_WORD, "wrong header checksum"));
        }
        let limits = Limits::from_words(std::array::from_fn(|index| file.at(LIMITS_WORD + index)));
        let size = limits.size();
        if limits != limits.allowed() || file.at(SIZE_WORD) != size as u64 {
            return Err(damaged(LIMITS_WORD, "impossible limits"));
        }
        // Omitted zeros can be the end of a value. No value is longer than a slot's maximum.
        let mut with_zeros;
        let mut file = file;
        if bytes.len() < size {
            with_zeros = bytes.to_vec();
            with_zeros.resize(size.min(bytes.len() + 2 * Limits::MAX.large_bytes as usize), 0);
            file = Words(&with_zeros);
        }
        let mut run_id = [0; 16];
        run_id.copy_from_slice(&bytes[RUN_ID_WORD * 8..][..16]);
        let mut reading = Reading { file, facts: RunFacts { run_id: Id(run_id), ..RunFacts::default() } };
        let layout = Layout::new(&limits);
        reading.scalars(&layout);
        reading.facts.process = read_identity(layout.identity, |index| file.at(index));
        reading.crash_record(&layout);
        reading.facts(&layout);
        // The facts of a child created by fork are its parent's.
        if let Some(process) = &reading.facts.process {
            reading.facts.app.pid = Some(process.pid);
        }
        let mut values = reading.slots(&layout.small);
        values.extend(reading.slots(&layout.large));
        reading.values(values);
        reading.breadcrumbs(&layout);
        Ok(reading.facts)
    }

    /// Reads the run state file at `path`.
    ///
    /// # Errors
    /// Those of [`read`](Self::read), or [`RunStateError::File`] if the file can't be read.
    pub fn read_file(path: impl AsRef<Path>) -> Result<RunFacts, RunStateError> {
        let limit = Limits::MAX.size() as u64;
        RunFacts::read(&read_bounded(path.as_ref(), limit).map_err(RunStateError::File)?)
    }
}

/// Returns a name of up to 16 bytes from two words.
fn name([first, rest]: [u64; 2]) -> Option<String> {
    let bytes = [first.to_le_bytes(), rest.to_le_bytes()].concat();
    let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    (!name.is_empty()).then(|| String::from_utf8_lossy(name).into_owned())
}

/// A file as words. Words beyond its end are zero.
#[derive(Clone, Copy, Debug)]
struct Words<'a>(&'a [u8]);

impl<'a> Words<'a> {
    fn at(&self, index: usize) -> u64 {
        let bytes = self.0.get(index * 8..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    fn bytes(&self, word: usize, len: usize) -> &'a [u8] {
        self.0.get(word * 8..).and_then(|rest| rest.get(..len)).unwrap_or_default()
    }
}

/// A valid version of a slot.
struct Version<'a> {
    sequence: u64,
    kind: Kind,
    form: u8,
    /// Whether the version counts only if the change that it belongs to was committed.
    pending: bool,
    key: &'a [u8],
    value: &'a [u8],
    at: usize,
}

struct Reading<'a> {
    file: Words<'a>,
    facts: RunFacts,
}

impl<'a> Reading<'a> {
    fn problem(&mut self, word: usize, what: String) {
        self.facts.problems.push(Problem { section: None, offset: word as u64 * 8, what });
    }

    fn scalars(&mut self, layout: &Layout) {
        let scalar = |scalar: Scalar| self.file.at(layout.scalars + usize::from(scalar.0));
        let time = |number| Some(scalar(number)).filter(|ns| *ns > 0).map(Timestamp);
        let number = |number| scalar(number) as u8;
        let id = |high, low| Id((u128::from(scalar(high)) << 64 | u128::from(scalar(low))).to_be_bytes());
        let processing = Processing {
            run: id(Scalar::PROCESSING_RUN_HIGH, Scalar::PROCESSING_RUN_LOW),
            tid: scalar(Scalar::PROCESSING_THREAD),
        };
        let mut hang_durations_ns = BTreeMap::new();
        let of_hang = |number| Some((number, scalar(Scalar::hang_duration(number)?)));
        hang_durations_ns.extend((0..MAX_HANGS).filter_map(of_hang).filter(|(_, ns)| *ns > 0));
        self.facts.lifecycle = Lifecycle {
            exit: ExitKind(number(Scalar::EXIT)),
            exit_time: time(Scalar::EXIT_TIME),
            exit_signal: Some(scalar(Scalar::EXIT_SIGNAL) as i32).filter(|signal| *signal > 0),
            exit_sender: Some(scalar(Scalar::EXIT_SENDER) as u32).filter(|process| *process > 0),
            exit_sender_name: name([Scalar::EXIT_SENDER_NAME, Scalar::EXIT_SENDER_NAME_REST].map(scalar)),
            exit_handled: scalar(Scalar::EXIT_HANDLED) != 0,
            foreground: Foreground(number(Scalar::FOREGROUND)),
            foreground_changed: time(Scalar::FOREGROUND_CHANGED),
            last_alive: time(Scalar::LAST_ALIVE),
            hang_since: time(Scalar::HANG_SINCE),
            hang_durations_ns,
            memory_used: Some(scalar(Scalar::MEMORY_USED)).filter(|bytes| *bytes > 0),
            memory_available: Some(scalar(Scalar::MEMORY_AVAILABLE)).filter(|bytes| *bytes > 0),
            debugged: scalar(Scalar::DEBUGGED) != 0,
            forwarded_fault: Some(scalar(Scalar::FORWARDED_FAULT)).filter(|address| *address > 0).map(Address),
            reports_left_out: scalar(Scalar::REPORTS_LEFT_OUT).saturating_sub(scalar(Scalar::LEFT_OUT_NOTIFIED)),
            reports_delivered: scalar(Scalar::REPORTS_DELIVERED),
            processing: Some(processing).filter(|processing| processing.tid != 0),
            ..Lifecycle::default()
        };
        self.facts.device_state = time(Scalar::DEVICE_READ).map(|read| {
            let power = scalar(Scalar::POWER);
            let bytes = |number| Some(scalar(number)).filter(|bytes| *bytes > 0);
            DeviceState {
                read: Some(read),
                memory_free: bytes(Scalar::MACHINE_MEMORY_FREE),
                storage_size: bytes(Scalar::STORAGE_SIZE),
                // A full file system has 0 bytes free.
                storage_free: bytes(Scalar::STORAGE_SIZE).map(|_| scalar(Scalar::STORAGE_FREE)),
                battery_percent: (power as u8).checked_sub(1),
                charging: [None, Some(false), Some(true), None][(power >> 8 & 3) as usize],
                thermal: Some(ThermalState((power >> 16) as u8)).filter(|state| *state != ThermalState::UNKNOWN),
            }
        });
        self.facts.vitals = time(Scalar::VITALS_READ).map(|read| {
            let bytes = |number| Some(scalar(number)).filter(|bytes| *bytes > 0);
            let count = |number| scalar(number).checked_sub(1);
            let (time, risk) = (scalar(Scalar::PROCESSOR_TIME), scalar(Scalar::MEMORY_RISK));
            Vitals {
                read,
                oom_score_adj: (risk as u16)
                    .checked_sub(1)
                    .and_then(|score| i16::try_from(score).ok()?.checked_sub(1000)),
                memory_pressure: ((risk >> 16) as u16).checked_sub(1),
                machine_oom_kills: count(Scalar::MACHINE_OOM_KILLS),
                cgroup: bytes(Scalar::CGROUP),
                cgroup_oom_kills: count(Scalar::CGROUP_OOM_KILLS),
                cgroup_memory_limit: bytes(Scalar::CGROUP_MEMORY_LIMIT),
                cgroup_processes: ((risk >> 32) as u16).checked_sub(1).map(u32::from),
                cpu_used_ms: (time as u32 > 0).then(|| u64::from(time as u32) * 10),
                cpu_limit_s: (time >> 32).checked_sub(1),
            }
        });
        self.facts.app.process_start = time(Scalar::PROCESS_STARTED);
        self.facts.level = Some(Level(number(Scalar::LEVEL))).filter(|level| level.0 != 0);
        if let Some(started) = time(Scalar::SESSION_STARTED) {
            self.facts.session = Some(Session {
                id: id(Scalar::SESSION_ID_HIGH, Scalar::SESSION_ID_LOW),
                started,
                errors: scalar(Scalar::SESSION_ERRORS),
                status: SessionStatus(number(Scalar::SESSION_STATUS)),
                ended: time(Scalar::SESSION_ENDED),
            });
        }
    }

    /// Reads the newest fatal crash or, if there is none, the newest non-fatal one.
    fn crash_record(&mut self, layout: &Layout) {
        let mut records = Vec::new();
        for at in (0..CRASH_RECORDS as u64).map(|number| layout.crash_record(number)) {
            match read_crash(at, |index| self.file.at(index)) {
                Ok(record) => records.extend(record),
                Err(NotWhole) => self.problem(at, "incomplete crash record".to_owned()),
            }
        }
        let newest = records.into_iter().max_by_key(|(number, record)| (!record.not_fatal, *number));
        let Some((_, record)) = newest else { return };
        let lifecycle = &mut self.facts.lifecycle;
        lifecycle.crashed_by = Some(record.monitor);
        lifecycle.crash_time = Some(record.time);
        // The record is written before the exit word.
        if lifecycle.exit == ExitKind::RUNNING && !record.not_fatal {
            lifecycle.exit = ExitKind::CRASHED;
        }
        self.facts.crash = Some(record);
    }

    fn facts(&mut self, layout: &Layout) {
        let head = self.file.at(layout.facts);
        let len = head as u32 as usize;
        if head == 0 {
            return;
        }
        let bytes = self.file.bytes(layout.facts + 1, len);
        if len > layout.facts_words * 8 || bytes.len() != len || crc32c(0, bytes) != (head >> 32) as u32 {
            return self.problem(layout.facts, "the facts are damaged: their checksum is wrong".to_owned());
        }
        let item = decode_item(&mut Decoder::new(bytes), &mut Limit(ITEMS));
        let mut fields = match item.map(Fields::new) {
            Ok(Some(fields)) => fields,
            Ok(None) => return self.problem(layout.facts, "the facts are not a map".to_owned()),
            Err(error) => return self.problem(layout.facts, format!("malformed CBOR in the app's facts: {error}")),
        };
        let started = self.facts.app.process_start;
        self.facts.app = AppFacts::take(&mut fields);
        self.facts.app.process_start = started.or(self.facts.app.process_start);
        self.facts.os = OsFacts::take(&mut fields);
        self.facts.device = DeviceFacts::take(&mut fields);
        self.facts.unknown_facts = fields.rest();
    }

    /// Returns every key of a table with its newest valid version, in no particular order.
    fn slots(&mut self, table: &Table) -> Vec<Version<'a>> {
        let mut newest: HashMap<(u8, &'a [u8]), Version<'a>> = HashMap::new();
        for number in 0..table.slots {
            let versions = [0, 1].map(|version| self.version(table, table.version(number, version)));
            let touched = (0..2).any(|version| self.file.at(table.version(number, version)) != 0);
            let committed = self.file.at(COMMITTED_WORD);
            let counts = |version: &Version<'_>| !version.pending || version.sequence <= committed;
            let damaged = touched && versions.iter().all(Option::is_none);
            let current = versions.into_iter().flatten().filter(counts).max_by_key(|version| version.sequence);
            let Some(current) = current else {
                // If the process was killed while writing a new key, its only version is not valid:
                // that is not damage. A sequence number means that a version was whole.
                if damaged {
                    self.problem(table.slot(number), "both versions of a value are damaged".to_owned());
                }
                continue;
            };
            let key = (current.kind.0, current.key);
            if newest.get(&key).is_none_or(|other| other.sequence < current.sequence) {
                newest.insert(key, current);
            }
        }
        newest.into_values().filter(|version| version.form != form::REMOVED).collect()
    }

    /// Returns the version at a word, if it is valid.
    fn version(&self, table: &Table, at: usize) -> Option<Version<'a>> {
        let (sequence, meta) = (self.file.at(at), self.file.at(at + 1));
        if sequence == 0 {
            return None;
        }
        let (key_len, value_len) = ((meta >> 16 & 0xFFFF) as usize, (meta >> 32) as usize);
        let (key_words, value_words) = (key_len.div_ceil(8), value_len.div_ceil(8));
        if key_len > MAX_KEY || key_words + value_words > table.data_words {
            return None;
        }
        let data = at + 3;
        let words =
            [sequence, meta].into_iter().chain((data..data + key_words + value_words).map(|at| self.file.at(at)));
        if words.fold(0, mix) != self.file.at(at + 2) {
            return None;
        }
        let (key, value) = (self.file.bytes(data, key_len), self.file.bytes(data + key_words, value_len));
        let form = (meta >> 8) as u8;
        let (form, pending) = (form & !form::PENDING, form & form::PENDING != 0);
        Some(Version { sequence, kind: Kind(meta as u8), form, pending, key, value, at })
    }

    fn values(&mut self, mut values: Vec<Version<'a>>) {
        heap_sort(&mut values, |first, second| first.sequence < second.sequence);
        for version in values {
            let value = match version.form {
                form::TEXT => Ok(Value::Text(String::from_utf8_lossy(version.value).into_owned())),
                form::CBOR => decode_item(&mut Decoder::new(version.value), &mut Limit(ITEMS))
                    .map_err(|error| format!("malformed CBOR: {error}")),
                form => Err(format!("unsupported value form {form}")),
            };
            let key = String::from_utf8_lossy(version.key).into_owned();
            let value = match value {
                Ok(value) => value,
                Err(what) => {
                    self.problem(version.at, format!("{key}: {what}"));
                    continue;
                }
            };
            match (version.kind, value) {
                (Kind::TAG, Value::Text(text)) => drop(self.facts.tags.insert(key, text)),
                (Kind::CONTEXT, value) => drop(self.facts.contexts.insert(key, value)),
                (Kind::EXTRA, value) => drop(self.facts.extra.insert(key, value)),
                (Kind::USER, value) => self.facts.user = Some(value),
                (Kind::FINGERPRINT, Value::Array(parts)) => {
                    self.facts.fingerprint = parts.iter().filter_map(Value::as_str).map(str::to_owned).collect();
                }
                (Kind::ATTACHMENT, Value::Map(pairs)) => {
                    let text = |name: &str| {
                        let pair = pairs.iter().find(|(key, _)| key.as_str() == Some(name))?;
                        pair.1.as_str().map(str::to_owned)
                    };
                    // An attachment without a path is useless.
                    self.facts.attachments.extend(text("path").map(|path| Attachment {
                        name: key,
                        path,
                        content_type: text("content_type"),
                    }));
                }
                (Kind::CHANGED_FACT, Value::Text(text)) if key == "release" => self.facts.release = Some(text),
                (Kind::CHANGED_FACT, Value::Text(text)) if key == "environment" => {
                    self.facts.environment = Some(text);
                }
                (kind, value) => {
                    let map = self.facts.unknown_values.entry(kind.0.into()).or_insert_with(|| Value::Map(Vec::new()));
                    if let Value::Map(pairs) = map {
                        pairs.push((Value::Text(key), value));
                    }
                }
            }
        }
    }

    fn breadcrumbs(&mut self, layout: &Layout) {
        let left = self.file.at(BREADCRUMB_WORD);
        // At most the breadcrumbs that were left can be cleared; otherwise the word is damaged.
        let cleared = Some(self.file.at(CLEARED_WORD)).filter(|cleared| *cleared <= left).unwrap_or(0);
        let (mut found, mut kept) = (Vec::new(), 0);
        let scalar = |scalar: Scalar| self.file.at(layout.scalars + usize::from(scalar.0));
        let newest = newest(scalar(Scalar::NEWEST_BREADCRUMB));
        let repeated = Timestamp(scalar(Scalar::BREADCRUMB_REPEATED));
        for slot in 0..layout.breadcrumb_count {
            let at = layout.breadcrumb(slot);
            let ((number, repetitions), head_word) = (split(self.file.at(at)), self.file.at(at + 1));
            // Number 0: never written, or being written when the process ended.
            if number == 0 || number <= cleared {
                continue;
            }
            kept += 1;
            let len = head_word as u32 as usize;
            let data = at + BREADCRUMB_HEADER_WORDS;
            let words =
                [number, len as u64].into_iter().chain((data..data + len.div_ceil(8)).map(|at| self.file.at(at)));
            let whole = len <= layout.breadcrumb_words * 8 && head(len, words.fold(0, mix)) == head_word;
            if !whole {
                self.problem(at, format!("breadcrumb {number} is incomplete"));
                continue;
            }
            match decode_item(&mut Decoder::new(self.file.bytes(data, len)), &mut Limit(ITEMS)).map(Fields::new) {
                Ok(Some(mut fields)) => {
                    let last = (repetitions > 0 && number == newest).then_some(repeated);
                    found.push((number, Breadcrumb { repetitions, last, ..breadcrumb(&mut fields) }));
                }
                Ok(None) => self.problem(at, format!("breadcrumb {number} is not a map")),
                Err(error) => self.problem(at, format!("breadcrumb {number} is malformed CBOR: {error}")),
            }
        }
        heap_sort(&mut found, |(first, _), (second, _)| first < second);
        self.facts.breadcrumbs = found.into_iter().map(|(_, breadcrumb)| breadcrumb).collect();
        self.facts.breadcrumbs_overwritten = left.saturating_sub(cleared).saturating_sub(kept);
    }
}

fn breadcrumb(fields: &mut Fields) -> Breadcrumb {
    Breadcrumb {
        time: Timestamp(fields.u64(keys::breadcrumb::TIME).unwrap_or(0)),
        level: Level(fields.number(keys::breadcrumb::LEVEL).unwrap_or(0)),
        kind: fields.text(keys::breadcrumb::KIND),
        category: fields.text(keys::breadcrumb::CATEGORY),
        message: fields.text(keys::breadcrumb::MESSAGE),
        data: fields.value(keys::breadcrumb::DATA),
        unknown: fields.rest(),
        ..Breadcrumb::default()
    }
}
