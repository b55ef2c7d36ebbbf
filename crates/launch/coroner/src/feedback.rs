//! What a user says of a crash.

use coroner_report::model::Id;

/// What a user says, for [`feedback`].
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

/// Delivers what a user says, most often of the last crash, by the sinks that can ([`Sink::feedback`](crate::Sink::feedback)). `false` if
/// none took it, or Coroner is not installed.
///
/// ```no_run
/// # let coroner = coroner::installed().unwrap();
/// let said = coroner::Feedback::new("I was only saving the document").event_id(coroner.last_run().event_id);
/// coroner::feedback(&said);
/// ```
pub fn feedback(feedback: &Feedback) -> bool {
    crate::installed().is_some_and(|coroner| coroner.take_feedback(feedback))
}
