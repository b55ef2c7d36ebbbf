//! What a user says of a crash.

use coroner_report::model::Id;

/// What a user says, for [`feedback`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
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

/// Delivers what a user says, most often of the last crash, by the sinks that can ([`Sink::feedback`](crate::Sink::feedback)). `false` if
/// none took it, or Coroner is not installed.
///
/// ```no_run
/// # let coroner = coroner::installed().unwrap();
/// let message = "I was only saving the document".to_owned();
/// let said = coroner::Feedback { event_id: coroner.last_run().event_id, message, ..coroner::Feedback::default() };
/// coroner::feedback(&said);
/// ```
pub fn feedback(feedback: &Feedback) -> bool {
    crate::installed().is_some_and(|coroner| coroner.take_feedback(feedback))
}
