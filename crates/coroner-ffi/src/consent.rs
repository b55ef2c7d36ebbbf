//! Whether the user agrees that reports are sent.

use std::sync::{Mutex, PoisonError};

use coroner::SentrySink;

use crate::status::{Status, fail, guarded};

/// The sink that the app configured last: it is the one that is installed.
static SINK: Mutex<Option<SentrySink>> = Mutex::new(None);

/// Keeps the sink, to tell it what the user says.
pub(crate) fn remember(sink: SentrySink) {
    *SINK.lock().unwrap_or_else(PoisonError::into_inner) = Some(sink);
}

pub(crate) fn sink() -> Option<SentrySink> {
    SINK.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Says whether the user agrees that reports are sent to Sentry. From true on, what waits is sent; with false all that waits is
/// removed and nothing more is kept. It is remembered over launches.
#[unsafe(no_mangle)]
pub extern "C" fn coroner_set_consent(given: bool) -> Status {
    guarded(|| {
        let sink = sink().ok_or_else(|| fail(Status::NotInstalled, "there is no sink that sends to Sentry"))?;
        sink.set_consent(given).map_err(|error| fail(Status::System, error.to_string()))
    })
}
