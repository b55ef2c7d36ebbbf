//! User feedback as an envelope item (develop.sentry.dev, *User Feedback*).

use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::time::SystemTime;

use coroner_report::model::Timestamp;
use sentry_types::protocol::v7::{self, Context, Map, Uuid};
use serde_json::Value;

use crate::Client;
use crate::envelope::{Envelope, Item, item_type};
use crate::event::{Event, EventOptions, micros, sdk};
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
        let id = Uuid::from_u64_pair(half(), half());
        let message: String = self.message.chars().take(MAX_MESSAGE).collect();
        let mut context = Map::from([("message".to_owned(), Value::from(message))]);
        let optional = [("name", &self.name), ("contact_email", &self.email), ("associated_event_id", &self.event_id)];
        for (key, value) in optional {
            if let Some(value) = value {
                context.insert(key.to_owned(), value.clone().into());
            }
        }
        let protocol = v7::Event {
            event_id: id,
            timestamp: micros(Timestamp::from(now)),
            platform: "native".into(),
            level: v7::Level::Info,
            sdk: Some(Cow::Owned(sdk(env!("CARGO_PKG_VERSION"), Vec::new()))),
            contexts: Map::from([("feedback".to_owned(), Context::Other(context))]),
            release: options.release.clone().map(Cow::Owned),
            environment: options.environment.clone().map(Cow::Owned),
            ..v7::Event::default()
        };
        let event = Event { protocol, ..Event::default() };
        let mut envelope = Envelope::new();
        envelope.header.insert("event_id".to_owned(), event.id().into());
        envelope.with(Item::json(item_type::FEEDBACK, &event.to_whole_value()))
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
