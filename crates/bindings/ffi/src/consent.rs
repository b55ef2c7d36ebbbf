//! The user's consent to sending reports.

#[cfg(feature = "otlp")]
use coroner::OtlpSink;
#[cfg(feature = "sentry")]
use coroner::SentrySink;
use std::sync::{Mutex, PoisonError};

use crate::status::{Status, fail, guarded};

/// The most recently configured sinks, which are the installed ones.
static SINKS: Mutex<Sinks> = Mutex::new(Sinks::none());

#[derive(Clone)]
struct Sinks {
    #[cfg(feature = "sentry")]
    sentry: Option<SentrySink>,
    #[cfg(feature = "otlp")]
    otlp: Option<OtlpSink>,
}

impl Sinks {
    const fn none() -> Self {
        Self {
            #[cfg(feature = "sentry")]
            sentry: None,
            #[cfg(feature = "otlp")]
            otlp: None,
        }
    }
}

/// Keeps the sink, to pass the user's consent to it.
#[cfg(feature = "sentry")]
pub(crate) fn remember_sentry(sink: &SentrySink) {
    SINKS.lock().unwrap_or_else(PoisonError::into_inner).sentry = Some(sink.clone());
}

/// Keeps the sink, to pass the user's consent to it.
#[cfg(feature = "otlp")]
pub(crate) fn remember_otlp(sink: &OtlpSink) {
    SINKS.lock().unwrap_or_else(PoisonError::into_inner).otlp = Some(sink.clone());
}

/// Sets whether the user consents to sending reports, to Sentry and over OTLP.
///
/// If `given` is true, waiting reports are sent; if it is false, they are deleted and new ones are
/// not kept. The choice is stored and applies to later launches.
#[unsafe(no_mangle)]
pub extern "C" fn coroner_set_consent(given: bool) -> Status {
    guarded(|| {
        let sinks = SINKS.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut results = Vec::new();
        #[cfg(feature = "sentry")]
        results.extend(sinks.sentry.map(|sink| sink.set_consent(given)));
        #[cfg(feature = "otlp")]
        results.extend(sinks.otlp.map(|sink| sink.set_consent(given)));
        if results.is_empty() {
            return Err(fail(Status::NotInstalled, "no configured sink sends to a server"));
        }
        // All sinks are updated before the first failure is returned.
        results.into_iter().collect::<Result<(), _>>().map_err(|error| fail(Status::System, error.to_string()))
    })
}
