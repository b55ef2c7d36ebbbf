//! Files kept until a report is delivered, and server responses. They may come from another version
//! of the app, a failing disk, or an attacker.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coroner::LastRun;
use coroner_sentry::client_report::{Discarded, Reason};
use coroner_sentry::envelope::Envelope;
use coroner_sentry::outbox::{Outbox, OutboxLimits, State};
use coroner_sentry::rate_limits::RateLimits;
use coroner_sentry::session::{SessionMode, items};

/// The current time, between the times in the seeds.
fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_790_000_000)
}

/// An envelope. Whatever could be parsed is written back unchanged.
pub fn envelope(input: &[u8]) {
    let Ok(envelope) = Envelope::parse(input) else { return };
    let bytes = envelope.to_bytes();
    assert_eq!(Envelope::parse(&bytes).expect("a written envelope parses"), envelope);
    assert!(Envelope::parse(&envelope.to_bytes_sent_at(now())).is_ok());
    let mut counted = Discarded::default();
    counted.count_envelope(Reason::CacheOverflow, &envelope);
}

/// `state.json` of an outbox.
pub fn outbox_state(input: &[u8]) {
    let Ok(mut state) = serde_json::from_slice::<State>(input) else { return };
    let written = serde_json::to_vec(&state).expect("JSON");
    assert_eq!(serde_json::from_slice::<State>(&written).expect("written JSON parses"), state);
    for category in ["error", "session"] {
        assert!(state.rate_limits.wait(category, now()).is_none_or(|wait| wait <= Duration::from_hours(24)));
    }
    let counts = state.discarded.clone();
    let _ = counts.item(now());
    state.discarded.add(&counts);
    state.discarded.subtract(&counts);
    state.note_done("an id");
    assert!(state.is_done("an id") && state.done.len() <= 1 + written.len());
    state.sessions.limit(1000);
    for mode in [SessionMode::Individual, SessionMode::Aggregated] {
        let batch = state.sessions.next_batch(mode, |_| false);
        let envelope = Envelope { items: items(&batch, mode), ..Envelope::new() };
        assert!(Envelope::parse(&envelope.to_bytes()).is_ok());
        let before = state.sessions.len();
        state.sessions.remove(&batch);
        assert!(batch.is_empty() || state.sessions.len() < before, "the batch is never removed");
    }
}

/// An outbox that another program changed. The first line is the name of a file in the queue, the
/// second `state.json`, the rest the contents of the file.
pub fn outbox(input: &[u8]) {
    thread_local! {
        static FOLDER: tempfile::TempDir =
            tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a temporary folder");
    }
    let mut parts = input.splitn(3, |byte| *byte == b'\n');
    let mut part = || parts.next().unwrap_or_default();
    let (name, state, contents) = (part(), part(), part());
    FOLDER.with(|folder| {
        try_outbox(folder.path(), name, state, contents);
        fs::remove_dir_all(folder.path().join("queue")).expect("the queue exists");
        fs::remove_dir_all(folder.path().join("given-up")).expect("the folder exists");
    });
}

fn try_outbox(folder: &Path, name: &[u8], state: &[u8], contents: &[u8]) {
    let outbox = Outbox::open(folder).expect("an outbox");
    let name = String::from_utf8_lossy(name).replace(['/', '\0'], "");
    let _ = fs::write(folder.join("queue").join(&name), contents);
    fs::write(folder.join("state.json"), state).expect("a writable folder");
    outbox.update(|state| state.note_done("an id")).expect("a writable folder");
    assert!(outbox.read_state().is_done("an id"), "the noted event is missing");
    for entry in outbox.queue().expect("a readable folder") {
        // Every listed entry must be removable, or it would stay forever.
        if let Ok(read) = outbox.read(&entry) {
            assert!(read.is_some(), "`{name}` is listed but missing");
        }
        outbox.put_off(&entry, entry.tries.wrapping_add(1), now()).expect("the entry can be postponed");
    }
    let limits = OutboxLimits { number: 0, ..OutboxLimits::default() };
    outbox.enforce(&limits, now()).expect("listed entries can be removed");
    assert_eq!(outbox.queue().expect("a readable folder"), []);
}

/// Server responses, one a line and a second apart: status, `X-Sentry-Rate-Limits` and
/// `Retry-After`, separated by tabs.
pub fn server_answer(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let mut limits = RateLimits::default();
    for (seconds, line) in text.lines().enumerate() {
        let now = now() + Duration::from_secs(seconds as u64);
        let mut fields = line.split('\t');
        let status = fields.next().and_then(|status| status.parse().ok()).unwrap_or(429);
        limits.update("error", status, fields.next(), fields.next(), now);
        let wait = |category: &str| limits.wait(category, now);
        assert!(
            ["error", "session", "internal"].map(wait).iter().flatten().all(|wait| *wait <= Duration::from_hours(24))
        );
        assert!(status != 429 || wait("error").is_some(), "retried at once after a 429");
        let day = now + Duration::from_hours(24);
        assert_eq!(limits.wait("error", day), None, "the limit never expires");
    }
}

/// `progress.json` of a run, and `last_run.json`.
pub fn store_notes(input: &[u8]) {
    let (written, asked) = coroner::reread_progress(input, now());
    assert_eq!(coroner::reread_progress(&written, now()), (written, asked));
    if let Ok(last_run) = serde_json::from_slice::<LastRun>(input) {
        let written = serde_json::to_vec(&last_run).expect("JSON");
        assert_eq!(serde_json::from_slice::<LastRun>(&written).expect("written JSON parses"), last_run);
    }
}
