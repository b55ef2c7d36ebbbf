//! What is kept on the disk until it is delivered, and what servers answer: other versions of the app wrote it, a failing disk, or
//! somebody who means harm.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coroner::LastRun;
use coroner_sentry::client_report::{Discarded, Reason};
use coroner_sentry::envelope::Envelope;
use coroner_sentry::outbox::{Outbox, OutboxLimits, State};
use coroner_sentry::rate_limits::RateLimits;
use coroner_sentry::session::{SessionMode, items};

/// A time between those in the seeds.
fn time() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_790_000_000)
}

/// An envelope of anybody's making: what was understood is written again as it was.
pub fn envelope(input: &[u8]) {
    let Ok(envelope) = Envelope::parse(input) else { return };
    let bytes = envelope.to_bytes();
    assert_eq!(Envelope::parse(&bytes).expect("an envelope that was written"), envelope);
    assert!(Envelope::parse(&envelope.to_bytes_sent_at(time())).is_ok());
    let mut counted = Discarded::default();
    counted.count_envelope(Reason::CacheOverflow, &envelope);
    if let Some(event) = envelope.event() {
        assert!(Envelope::of_event(&event).event().is_some(), "an event that is not read again");
    }
}

/// `state.json` of an outbox.
pub fn outbox_state(input: &[u8]) {
    let Ok(mut state) = serde_json::from_slice::<State>(input) else { return };
    let written = serde_json::to_vec(&state).expect("JSON");
    assert_eq!(serde_json::from_slice::<State>(&written).expect("what was written"), state);
    for category in ["error", "session"] {
        assert!(state.rate_limits.wait(category, time()).is_none_or(|wait| wait <= Duration::from_hours(24)));
    }
    let counts = state.discarded.clone();
    let _ = counts.item(time());
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
        assert!(batch.is_empty() || state.sessions.len() < before, "a batch that comes for ever");
    }
}

/// An outbox in which somebody has been: the first line is a name in the queue, the second `state.json`, the rest that file's bytes.
pub fn outbox(input: &[u8]) {
    thread_local! {
        static FOLDER: tempfile::TempDir =
            tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder");
    }
    let mut parts = input.splitn(3, |byte| *byte == b'\n');
    let mut part = || parts.next().unwrap_or_default();
    let (name, state, contents) = (part(), part(), part());
    FOLDER.with(|folder| {
        try_outbox(folder.path(), name, state, contents);
        fs::remove_dir_all(folder.path().join("queue")).expect("the queue was there");
        fs::remove_dir_all(folder.path().join("given-up")).expect("it was there");
    });
}

fn try_outbox(folder: &Path, name: &[u8], state: &[u8], contents: &[u8]) {
    let outbox = Outbox::open(folder).expect("an outbox");
    let name = String::from_utf8_lossy(name).replace(['/', '\0'], "");
    let _ = fs::write(folder.join("queue").join(&name), contents);
    fs::write(folder.join("state.json"), state).expect("room");
    outbox.update(|state| state.note_done("an id")).expect("room");
    assert!(outbox.read_state().is_done("an id"), "what was noted is not there");
    for entry in outbox.queue().expect("a folder") {
        // What is listed is there; so nothing can stay for ever that nobody can take out.
        if let Ok(read) = outbox.read(&entry) {
            assert!(read.is_some(), "`{name}` is listed and not there");
        }
        outbox.put_off(&entry, entry.tries.wrapping_add(1), time()).expect("it can be put off");
    }
    let limits = OutboxLimits { number: 0, ..OutboxLimits::default() };
    outbox.enforce(&limits, time()).expect("what is listed can be removed");
    assert_eq!(outbox.queue().expect("a folder"), []);
}

/// Answers, each a line of status, `X-Sentry-Rate-Limits` and `Retry-After`, with tabs in between, a second apart.
pub fn server_answer(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let mut limits = RateLimits::default();
    for (seconds, line) in text.lines().enumerate() {
        let now = time() + Duration::from_secs(seconds as u64);
        let mut fields = line.split('\t');
        let status = fields.next().and_then(|status| status.parse().ok()).unwrap_or(429);
        limits.update(status, fields.next(), fields.next(), now);
        let wait = |category: &str| limits.wait(category, now);
        assert!(
            ["error", "session", "internal"].map(wait).iter().flatten().all(|wait| *wait <= Duration::from_hours(24))
        );
        assert!(status != 429 || wait("error").is_some(), "a server that refuses is asked again at once");
        let day = now + Duration::from_hours(24);
        assert_eq!(limits.wait("error", day), None, "no limit is for ever");
    }
}

/// `progress.json` of a run, and `last_run.json`.
pub fn store_notes(input: &[u8]) {
    let (written, asked) = coroner::reread_progress(input, time());
    assert_eq!(coroner::reread_progress(&written, time()), (written, asked));
    if let Ok(last_run) = serde_json::from_slice::<LastRun>(input) {
        let written = serde_json::to_vec(&last_run).expect("JSON");
        assert_eq!(serde_json::from_slice::<LastRun>(&written).expect("what was written"), last_run);
    }
}
