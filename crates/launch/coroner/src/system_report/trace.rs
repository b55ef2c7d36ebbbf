//! Reads the systems' traces in all known formats.

#[cfg(feature = "system-reports")]
mod forms {
    pub(in super::super) use coroner_formats::tombstone::{exceptions_of_stack_trace, is_managed};
    use coroner_report::model::Report;

    use super::super::metric_kit;

    /// Whether the trace's format is known, so that it can be converted to a report.
    pub(in super::super) fn is_known(trace: &[u8]) -> bool {
        coroner_formats::tombstone::detect_form(trace).is_some() || metric_kit::is_of_it(trace)
    }

    /// Converts a trace to a report.
    pub(in super::super) fn read(trace: &[u8]) -> Option<Report> {
        if metric_kit::is_of_it(trace) { metric_kit::read(trace) } else { coroner_formats::tombstone::read(trace).ok() }
    }
}

/// Without the feature, no format is known.
#[cfg(not(feature = "system-reports"))]
mod forms {
    use coroner_report::model::{Exception, Frame, Report};

    pub(in super::super) fn is_known(_: &[u8]) -> bool {
        false
    }

    pub(in super::super) fn read(_: &[u8]) -> Option<Report> {
        None
    }

    pub(in super::super) fn is_managed(_: &Frame) -> bool {
        false
    }

    pub(in super::super) fn exceptions_of_stack_trace(_: &str, _: u64) -> Vec<Exception> {
        Vec::new()
    }
}

pub(super) use forms::{exceptions_of_stack_trace, is_known, is_managed, read};
