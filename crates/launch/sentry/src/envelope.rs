//! Envelopes: one line of header, then items, each one line of header and its bytes (develop.sentry.dev, *Envelopes*).
//!
//! Coroner reads and writes them itself, because `sentry-types` refuses a whole envelope for one image of type `elf` or one kind
//! of item that it does not know.

use std::fmt;
use std::time::SystemTime;

use coroner_report::model::Timestamp;
use serde_json::{Map, Value, json};

use crate::event::{Event, Sdk, time_text};
use crate::session::SessionUpdate;

/// The kinds of items that Coroner makes.
pub mod item_type {
    /// One event.
    pub const EVENT: &str = "event";
    /// A file.
    pub const ATTACHMENT: &str = "attachment";
    /// What a user says.
    pub const FEEDBACK: &str = "feedback";
    /// An update of a session.
    pub const SESSION: &str = "session";
    /// Counts of sessions.
    pub const SESSIONS: &str = "sessions";
    /// Counts of what was not sent.
    pub const CLIENT_REPORT: &str = "client_report";
}

/// An item.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// Its header. `type` is there; `length` is written with the item.
    pub header: Map<String, Value>,
    /// Its content.
    pub payload: Vec<u8>,
}

impl Item {
    /// An item of that type.
    pub fn new(kind: &str, payload: Vec<u8>) -> Self {
        Self { header: Map::from_iter([("type".to_owned(), kind.into())]), payload }
    }

    /// An item whose payload is JSON.
    pub fn json(kind: &str, payload: &impl serde::Serialize) -> Self {
        let mut item = Self::new(kind, serde_json::to_vec(payload).unwrap_or_default());
        item.header.insert("content_type".to_owned(), "application/json".into());
        item
    }

    /// A file.
    pub fn attachment(attachment: Attachment) -> Self {
        let mut item = Self::new(item_type::ATTACHMENT, attachment.bytes);
        // A path would tell of the user's directories.
        let name = attachment.filename.rsplit(['/', '\\']).next().unwrap_or_default().to_owned();
        item.header.insert("filename".to_owned(), name.into());
        item.header.insert("attachment_type".to_owned(), attachment.kind.name().into());
        if let Some(content_type) = attachment.content_type {
            item.header.insert("content_type".to_owned(), content_type.into());
        }
        item
    }

    /// Its type.
    pub fn kind(&self) -> &str {
        self.header.get("type").and_then(Value::as_str).unwrap_or_default()
    }

    /// Whether a server takes it for a crash itself, and not for something beside it.
    pub fn is_minidump(&self) -> bool {
        self.header.get("attachment_type").and_then(Value::as_str) == Some(AttachmentKind::Minidump.name())
    }

    /// The category under which servers count and limit it.
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

/// A file that goes with an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Its name. Of a path the last component is sent.
    pub filename: String,
    /// Its media type.
    pub content_type: Option<String>,
    /// What it is to a server.
    pub kind: AttachmentKind,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// What an attachment is to a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttachmentKind {
    /// A file to be shown beside the event.
    #[default]
    File,
    /// A minidump, of which the server takes the threads and images.
    Minidump,
}

impl AttachmentKind {
    fn name(self) -> &'static str {
        match self {
            Self::File => "event.attachment",
            Self::Minidump => "event.minidump",
        }
    }
}

/// An envelope.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Envelope {
    /// Its header. `sent_at` is not in it: it is written when the envelope is sent.
    pub header: Map<String, Value>,
    /// Its items, an event first.
    pub items: Vec<Item>,
}

impl Envelope {
    /// An envelope without items.
    pub fn new() -> Self {
        let sdk = Sdk::coroner();
        let sdk = json!({ "name": sdk.name, "version": sdk.version });
        Self { header: Map::from_iter([("sdk".to_owned(), sdk)]), items: Vec::new() }
    }

    /// An envelope of an event.
    pub fn of_event(event: &Event) -> Self {
        let mut envelope = Self::new();
        envelope.header.insert("event_id".to_owned(), event.event_id.clone().into());
        envelope.items.push(Item::json(item_type::EVENT, event));
        envelope
    }

    /// With one more item.
    #[must_use]
    pub fn with(mut self, item: Item) -> Self {
        self.items.push(item);
        self
    }

    /// The id of its event.
    pub fn event_id(&self) -> Option<&str> {
        self.header.get("event_id").and_then(Value::as_str)
    }

    /// The event in it, if it is one of Coroner's making.
    pub fn event(&self) -> Option<Event> {
        let item = self.items.iter().find(|item| item.kind() == item_type::EVENT)?;
        serde_json::from_slice(&item.payload).ok()
    }

    /// The session's update that goes with the event, if it is one of Coroner's making.
    pub fn session(&self) -> Option<SessionUpdate> {
        let item = self.items.iter().find(|item| item.kind() == item_type::SESSION)?;
        serde_json::from_slice(&item.payload).ok()
    }

    /// The same, taken out.
    pub fn take_session(&mut self) -> Option<SessionUpdate> {
        let session = self.session();
        self.items.retain(|item| item.kind() != item_type::SESSION);
        session
    }

    /// Its bytes, as they are kept.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Value::Object(self.header.clone()).to_string().into_bytes();
        bytes.push(b'\n');
        for item in &self.items {
            item.write(&mut bytes);
        }
        bytes
    }

    /// Its bytes as they are sent at `now`: with `sent_at`, by which a server corrects for a wrong clock. An envelope that has
    /// one already gets no second.
    pub fn to_bytes_sent_at(&self, now: SystemTime) -> Vec<u8> {
        let mut sent = self.header.clone();
        sent.insert("sent_at".to_owned(), time_text(Timestamp::from(now)).into());
        Self { header: sent, items: self.items.clone() }.to_bytes()
    }

    /// Reads an envelope. Items of any type are kept as they are.
    ///
    /// # Errors
    /// [`EnvelopeError`] where it is cut or is none.
    pub fn parse(bytes: &[u8]) -> Result<Self, EnvelopeError> {
        let (header, mut rest) = line(bytes);
        let header = object(header).map_err(|why| EnvelopeError { item: None, why })?;
        let mut items: Vec<Item> = Vec::new();
        while !rest.is_empty() {
            let (head, after) = line(rest);
            // Empty lines may stand between items and at the end.
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
                    length.ok_or_else(|| error("its length is no number".to_owned()))?
                }
            };
            let Some(payload) = after.get(..length) else {
                return Err(error(format!("it is cut: {} bytes of {length} are there", after.len())));
            };
            rest = match &after[length..] {
                [] => &[],
                [b'\n', rest @ ..] => rest,
                _ => return Err(error("no line ends after it".to_owned())),
            };
            items.push(Item { header, payload: payload.to_vec() });
        }
        Ok(Self { header, items })
    }
}

/// The first line and what comes after it.
fn line(bytes: &[u8]) -> (&[u8], &[u8]) {
    match bytes.iter().position(|byte| *byte == b'\n') {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (bytes, &[]),
    }
}

fn object(bytes: &[u8]) -> Result<Map<String, Value>, String> {
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err("its header is no JSON object".to_owned()),
        Err(error) => Err(format!("its header is no JSON: {error}")),
    }
}

/// Bytes are no envelope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvelopeError {
    /// Which item, 0 being the first; `None` for the envelope itself.
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
