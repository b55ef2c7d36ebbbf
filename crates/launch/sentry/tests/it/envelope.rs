//! Envelopes, there and back.

use std::time::SystemTime;

use coroner_sentry::envelope::{Attachment, Envelope, Item};
use coroner_sentry::event::Event;
use coroner_sentry::protocol::{Level, Uuid};

fn sample() -> Envelope {
    let mut event = Event::default();
    (event.event_id, event.level) = (Uuid::from_bytes([0xab; 16]), Level::Fatal);
    let file = Attachment {
        filename: "/home/ada/log.txt".into(),
        content_type: Some("text/plain".into()),
        ty: None,
        buffer: b"two\nlines\n\n".to_vec(),
    };
    Envelope::from_event(&event).with(Item::attachment(file)).with(Item::new("unheard_of", b"\0\xff".to_vec()))
}

#[test]
fn an_envelope_is_parsed_as_written() {
    let envelope = sample();
    let bytes = envelope.to_bytes();
    let back = Envelope::parse(&bytes).unwrap();
    assert_eq!(back.to_bytes(), bytes);
    assert_eq!(back.event_id(), Some("ab".repeat(16).as_str()));
    assert_eq!(back.items[1].header["filename"], "log.txt", "no path");
    assert_eq!(back.items[1].payload, b"two\nlines\n\n");
}

#[test]
fn sent_at_is_written_once_and_only_when_it_is_sent() {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(!text(&sample().to_bytes()).contains("sent_at"));
    let sent = sample().to_bytes_sent_at(SystemTime::UNIX_EPOCH);
    let again = Envelope::parse(&sent).unwrap().to_bytes_sent_at(SystemTime::now());
    assert_eq!(text(&again).matches("sent_at").count(), 1);
    assert!(
        text(&sent).starts_with("{\"event_id\":")
            && text(&sent).contains("\"sent_at\":\"1970-01-01T00:00:00.000000Z\"")
    );
}

#[test]
fn a_truncated_envelope_is_rejected_at_every_length() {
    let bytes = sample().to_bytes();
    let whole = Envelope::parse(&bytes).unwrap();
    for end in 0..bytes.len() - 1 {
        if let Ok(cut) = Envelope::parse(&bytes[..end]) {
            // A cut between two items can't be seen.
            assert!(cut.items.len() < whole.items.len() && cut.items == whole.items[..cut.items.len()], "{end}");
        }
    }
}

#[test]
fn lengths_may_be_missing_and_lines_empty() {
    let envelope = Envelope::parse(b"{}\n{\"type\":\"a\"}\n{\"x\":1}\n\n{\"type\":\"b\",\"length\":0}\n\n").unwrap();
    assert_eq!(envelope.items.len(), 2);
    assert_eq!(envelope.items[0].payload, b"{\"x\":1}");
    for (bad, why) in [
        (&b"garbage"[..], "not an envelope"),
        (b"{}\n[]\n", "item 0 of the envelope: the header is not a JSON object"),
        (b"{}\n{\"type\":\"a\",\"length\":-1}\n", "invalid length"),
        (b"{}\n{\"type\":\"a\",\"length\":1}\nab\n", "missing line break"),
    ] {
        let error = Envelope::parse(bad).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}
