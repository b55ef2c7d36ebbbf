//! User feedback about a crash.

use coroner_report::model::Id;

/// User feedback, for [`feedback`](crate::feedback()).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Feedback {
    /// The event that the feedback is about, such as
    /// [`LastRun::event_id`](crate::LastRun::event_id).
    pub event_id: Option<Id>,
    /// The user's message.
    pub message: String,
    /// The user's name.
    pub name: Option<String>,
    /// The user's email address.
    pub email: Option<String>,
}

impl Feedback {
    /// Creates feedback with a message that isn't about an event.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), ..Self::default() }
    }

    /// Sets the event that the feedback is about, if any.
    #[must_use]
    pub fn event_id(self, event_id: Option<Id>) -> Self {
        Self { event_id, ..self }
    }

    /// Sets the user's name.
    #[must_use]
    pub fn name(self, name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// Sets the user's email address.
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
