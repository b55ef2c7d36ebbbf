//! User feedback as an envelope item (develop.sentry.dev, *User Feedback*).

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::time::SystemTime;

use coroner_report::model::Timestamp;
use serde_json::{Map, Value, json};

use crate::Client;
use crate::envelope::{Envelope, Item, item_type};
use crate::event::{EventOptions, Sdk, time_text};
use crate::outbox::Pushed;

/// Maximum length of a message that servers accept, in characters.
const MAX_MESSAGE: usize = 4096;

/// Feedback from a user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Feedback {
    /// The id of the event that the feedback is about: 32 hexadecimal digits.
    pub event_id: Option<String>,
    /// The user's message; cut at 4,096 characters, the servers' limit.
    pub message: String,
    /// The user's name.
    pub name: Option<String>,
    /// The user's email address.
    pub email: Option<String>,
}

impl Feedback {
    /// Returns an envelope that contains only the feedback. Uses `options.release` and
    /// `options.environment`.
    pub fn envelope(&self, options: &EventOptions, now: SystemTime) -> Envelope {
        // `RandomState` takes its keys from the system's random numbers.
        let half = || RandomState::new().hash_one((now, &self.message));
        let id = format!("{:016x}{:016x}", half(), half());
        let message: String = self.message.chars().take(MAX_MESSAGE).collect();
        let mut context = Map::from_iter([("message".to_owned(), Value::from(message))]);
        let optional = [("name", &self.name), ("contact_email", &self.email), ("associated_event_id", &self.event_id)];
        for (key, value) in optional {
            if let Some(value) = value {
                context.insert(key.to_owned(), value.clone().into());
            }
        }
        let mut event = json!({
            "event_id": id,
            "timestamp": time_text(Timestamp::from(now)),
            "platform": "native",
            "level": "info",
            "sdk": Sdk::coroner(),
            "contexts": { "feedback": context },
        });
        for (key, value) in [("release", &options.release), ("environment", &options.environment)] {
            if let Some(value) = value {
                event[key] = value.clone().into();
            }
        }
        let mut envelope = Envelope::new();
        envelope.header.insert("event_id".to_owned(), id.into());
        envelope.with(Item::json(item_type::FEEDBACK, &event))
    }
}

impl Client {
    /// Queues user feedback for sending. Returns `false` if the user has refused consent.
    ///
    /// # Errors
    /// An I/O error if the feedback can't be written, for example because the disk is full.
    pub fn feedback(&self, feedback: &Feedback) -> io::Result<bool> {
        if self.outbox().is_refused()? {
            return Ok(false);
        }
        let now = SystemTime::now();
        let pushed = self.outbox().push(&feedback.envelope(&self.options().event, now), None, now)?;
        self.wake();
        Ok(pushed != Pushed::Refused)
    }
}
