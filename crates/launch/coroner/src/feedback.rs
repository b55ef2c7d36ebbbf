//! What a user says of a crash.

use coroner_report::model::Id;

/// What a user says, for [`feedback`](crate::feedback()).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Feedback {
    /// Of which event: that of the last crash is [`LastRun::event_id`](crate::LastRun::event_id).
    pub event_id: Option<Id>,
    /// What they say.
    pub message: String,
    /// Their name.
    pub name: Option<String>,
    /// The address by which they can be asked.
    pub email: Option<String>,
}

impl Feedback {
    /// What they say, of no event.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), ..Self::default() }
    }

    /// Of which event it is, if of one.
    #[must_use]
    pub fn event_id(self, event_id: Option<Id>) -> Self {
        Self { event_id, ..self }
    }

    /// Their name.
    #[must_use]
    pub fn name(self, name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// The address by which they can be asked.
    #[must_use]
    pub fn email(self, email: impl Into<String>) -> Self {
        Self { email: Some(email.into()), ..self }
    }
}

#[cfg(feature = "sentry")]
impl From<&Feedback> for coroner_sentry::Feedback {
    fn from(feedback: &Feedback) -> Self {
        Self {
            event_id: feedback.event_id.map(|id| id.to_string()),
            message: feedback.message.clone(),
            name: feedback.name.clone(),
            email: feedback.email.clone(),
        }
    }
}
