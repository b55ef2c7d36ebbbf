//! Envelopes (develop.sentry.dev, *Envelopes*).
//!
//! An envelope is a header line, then items, each a header line and its bytes.
//!
//! Coroner parses and writes them itself, because `sentry-types` rejects a whole envelope that
//! contains an image of type `elf` or an unknown item type.

use std::fmt;
use std::time::SystemTime;

use coroner_report::model::Timestamp;
use serde_json::{Map, Value, json};

use crate::event::{Event, SDK_NAME, time_text};
use crate::session::SessionUpdate;

pub use sentry_types::protocol::v7::{Attachment, AttachmentType};

/// The item types that Coroner creates.
///
/// `sentry-types` keeps its own to itself.
pub mod item_type {
    /// One event.
    pub const EVENT: &str = "event";
    /// A file.
    pub const ATTACHMENT: &str = "attachment";
    /// User feedback.
    pub const FEEDBACK: &str = "feedback";
    /// An update of a session.
    pub const SESSION: &str = "session";
    /// Session counts.
    pub const SESSIONS: &str = "sessions";
    /// Counts of discarded items.
    pub const CLIENT_REPORT: &str = "client_report";
}

/// An envelope item.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// The item's header. Contains `type`; `length` is added when the item is written.
    pub header: Map<String, Value>,
    /// The item's payload.
    pub payload: Vec<u8>,
}

impl Item {
    /// Creates an item of type `kind`.
    pub fn new(kind: &str, payload: Vec<u8>) -> Self {
        Self { header: Map::from_iter([("type".to_owned(), kind.into())]), payload }
    }

    /// Creates an item with a JSON payload.
    pub fn json(kind: &str, payload: &impl serde::Serialize) -> Self {
        let mut item = Self::new(kind, serde_json::to_vec(payload).unwrap_or_default());
        item.header.insert("content_type".to_owned(), "application/json".into());
        item
    }

    /// Creates an item from an attachment. If its file name is a path, only the last component is
    /// sent.
    pub fn attachment(attachment: Attachment) -> Self {
        let mut item = Self::new(item_type::ATTACHMENT, attachment.buffer);
        // A path would reveal the user's directories.
        let name = attachment.filename.rsplit(['/', '\\']).next().unwrap_or_default().to_owned();
        item.header.insert("filename".to_owned(), name.into());
        item.header.insert("attachment_type".to_owned(), attachment.ty.unwrap_or_default().as_str().into());
        if let Some(content_type) = attachment.content_type {
            item.header.insert("content_type".to_owned(), content_type.into());
        }
        item
    }

    /// Returns the item's type.
    pub fn kind(&self) -> &str {
        self.header.get("type").and_then(Value::as_str).unwrap_or_default()
    }

    /// Whether a server takes the item as the crash itself rather than an attached file.
    pub fn is_minidump(&self) -> bool {
        self.header.get("attachment_type").and_then(Value::as_str) == Some(AttachmentType::Minidump.as_str())
    }

    /// Returns the category under which servers count and limit the item.
    pub fn category(&self) -> &'static str {
        match self.kind() {
            item_type::EVENT => "error",
            item_type::ATTACHMENT => "attachment",
            item_type::FEEDBACK => "feedback",
            item_type::SESSION | item_type::SESSIONS => "session",
            // Client reports are never limited.
            item_type::CLIENT_REPORT => "internal",
            _ => "default",
        }
    }

    fn write(&self, bytes: &mut Vec<u8>) {
        let mut header = self.header.clone();
        header.insert("length".to_owned(), self.payload.len().into());
        bytes.extend_from_slice(Value::Object(header).to_string().as_bytes());
        bytes.push(b'\n');
        bytes.extend_from_slice(&self.payload);
        bytes.push(b'\n');
    }
}

/// An envelope.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Envelope {
    /// The envelope's header. `sent_at` is added when the envelope is sent.
    pub header: Map<String, Value>,
    /// The items; an event comes first.
    pub items: Vec<Item>,
}

impl Envelope {
    /// Creates an envelope without items.
    pub fn new() -> Self {
        let sdk = json!({ "name": SDK_NAME, "version": env!("CARGO_PKG_VERSION") });
        Self { header: Map::from_iter([("sdk".to_owned(), sdk)]), items: Vec::new() }
    }

    /// Creates an envelope with an event.
    pub fn from_event(event: &Event) -> Self {
        let mut envelope = Self::new();
        envelope.header.insert("event_id".to_owned(), event.id().into());
        envelope.items.push(Item::json(item_type::EVENT, event));
        envelope
    }

    /// Appends an item.
    #[must_use]
    pub fn with(mut self, item: Item) -> Self {
        self.items.push(item);
        self
    }

    /// Returns the event's id.
    pub fn event_id(&self) -> Option<&str> {
        self.header.get("event_id").and_then(Value::as_str)
    }

    /// Returns the category under which servers count and limit the envelope: its first item's.
    pub fn category(&self) -> &'static str {
        self.items.first().map_or("default", Item::category)
    }

    /// Returns the session update sent with the event, if Coroner can parse it.
    pub fn session(&self) -> Option<SessionUpdate> {
        let item = self.items.iter().find(|item| item.kind() == item_type::SESSION)?;
        serde_json::from_slice(&item.payload).ok()
    }

    /// Removes the session update and returns it.
    pub fn take_session(&mut self) -> Option<SessionUpdate> {
        let session = self.session();
        self.items.retain(|item| item.kind() != item_type::SESSION);
        session
    }

    /// Returns the envelope's bytes as stored on disk.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Value::Object(self.header.clone()).to_string().into_bytes();
        bytes.push(b'\n');
        for item in &self.items {
            item.write(&mut bytes);
        }
        bytes
    }

    /// Returns the envelope's bytes as sent at `now`, with `sent_at`.
    ///
    /// Servers use `sent_at` to correct for a wrong clock.
    pub fn to_bytes_sent_at(&self, now: SystemTime) -> Vec<u8> {
        let mut sent = self.header.clone();
        sent.insert("sent_at".to_owned(), time_text(Timestamp::from(now)).into());
        Self { header: sent, items: self.items.clone() }.to_bytes()
    }

    /// Parses an envelope. Items of unknown types are kept.
    ///
    /// # Errors
    /// [`EnvelopeError`] if the bytes are truncated or not an envelope.
    pub fn parse(bytes: &[u8]) -> Result<Self, EnvelopeError> {
        let (header, mut rest) = line(bytes);
        let header = object(header).map_err(|why| EnvelopeError { item: None, why })?;
        let mut items: Vec<Item> = Vec::new();
        while !rest.is_empty() {
            let (head, after) = line(rest);
            // Empty lines are allowed between items and at the end.
            if head.is_empty() {
                rest = after;
                continue;
            }
            let error = |why: String| EnvelopeError { item: Some(items.len()), why };
            let mut header = object(head).map_err(error)?;
            let length = match header.remove("length") {
                None => line(after).0.len(),
                Some(length) => {
                    let length = length.as_u64().and_then(|length| usize::try_from(length).ok());
                    length.ok_or_else(|| error("invalid length".to_owned()))?
                }
            };
            let Some(payload) = after.get(..length) else {
                return Err(error(format!("truncated: {} of {length} bytes", after.len())));
            };
            rest = match &after[length..] {
                [] => &[],
                [b'\n', rest @ ..] => rest,
                _ => return Err(error("missing line break after the payload".to_owned())),
            };
            items.push(Item { header, payload: payload.to_vec() });
        }
        Ok(Self { header, items })
    }
}

/// Splits off the first line; returns it and the remaining bytes.
fn line(bytes: &[u8]) -> (&[u8], &[u8]) {
    match bytes.iter().position(|byte| *byte == b'\n') {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (bytes, &[]),
    }
}

fn object(bytes: &[u8]) -> Result<Map<String, Value>, String> {
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err("the header is not a JSON object".to_owned()),
        Err(error) => Err(format!("the header is not valid JSON: {error}")),
    }
}

/// Bytes that are not a valid envelope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvelopeError {
    /// The item's index, from 0; `None` for the envelope itself.
    item: Option<usize>,
    why: String,
}

impl fmt::Display for EnvelopeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.item {
            Some(item) => write!(out, "item {item} of the envelope: {}", self.why),
            None => write!(out, "not an envelope: {}", self.why),
        }
    }
}

impl std::error::Error for EnvelopeError {}
