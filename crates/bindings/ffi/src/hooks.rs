//! App callbacks for the reports of earlier runs.

use std::ffi::{CString, c_char, c_void};
use std::time::Duration;

use coroner::{Delivery, Report, Sink, SinkAnswer, Submission};

use crate::app_pointer::AppPointer;
use crate::config::{Config, change};
use crate::status::{Status, fail};
use crate::text::text;

/// The result of an app's sink, returned by its coroner_sink_deliver function.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivered {
    /// The sink accepted the report.
    Taken = 0,
    /// The sink rejected the report; it is not offered again.
    Rejected = 1,
    /// The sink can't accept the report now.
    ///
    /// It is offered again at a launch or in coroner_flush, after a minute at the earliest.
    Retry = 2,
}

/// A [`Delivered`] from C, which may return any number. The header declares it as the enum.
pub type DeliveredResult = i32;

/// A report for an app's sink. All its pointers are valid until the function returns.
#[repr(C)]
#[derive(Debug)]
pub struct GivenReport {
    /// The event id: 32 hexadecimal digits.
    ///
    /// If the same report is delivered twice, the id is the same.
    pub event_id: *const c_char,
    /// The report as JSON (docs/report-format.md).
    ///
    /// NULL in a library built without the feature `json`, such as the lean one.
    pub json: *const c_char,
    /// The report as a `.coroner` file, as a folder sink stores it. `coroner show` reads it.
    ///
    /// Contains what the dying process wrote, including tags, user and breadcrumbs. Secrets in its
    /// strings are not hidden.
    pub raw: *const u8,
    /// The number of bytes at `raw`.
    pub raw_length: usize,
}

/// Delivers a report. It may block.
pub type DeliverFunction =
    Option<unsafe extern "C" fn(context: *mut c_void, report: *const GivenReport) -> DeliveredResult>;

/// Receives a report as JSON; returns whether to pass it to the sinks.
pub type BeforeDeliverFunction = Option<unsafe extern "C" fn(context: *mut c_void, json: *const c_char) -> bool>;

/// Called with the crash's event id, 32 hexadecimal digits; empty if the crash left no report.
pub type CrashedLastRunFunction = Option<unsafe extern "C" fn(context: *mut c_void, event_id: *const c_char)>;

/// Converts a string for C. Ids and JSON contain no NUL.
fn c_text(text: impl Into<Vec<u8>>) -> CString {
    CString::new(text).unwrap_or_default()
}

/// Returns the report as JSON; `None` without the feature `json`.
fn json(report: &Report) -> Option<CString> {
    cfg!(feature = "json").then(|| c_text(serde_json::to_string(report).unwrap_or_default()))
}

fn pointer(text: Option<&CString>) -> *const c_char {
    text.map_or(std::ptr::null(), |text| text.as_ptr())
}

struct AppSink {
    name: String,
    deliver: unsafe extern "C" fn(*mut c_void, *const GivenReport) -> DeliveredResult,
    context: AppPointer,
}

impl Sink for AppSink {
    fn name(&self) -> &str {
        &self.name
    }

    fn deliver(&self, submission: &Submission<'_>) -> SinkAnswer {
        let event_id = c_text(submission.report.header.event_id.to_string());
        let json = json(submission.report);
        let raw = submission.file();
        let (event_id, json) = (event_id.as_ptr(), pointer(json.as_ref()));
        let given = GivenReport { event_id, json, raw: raw.as_ptr(), raw_length: raw.len() };
        // SAFETY: as promised when the sink was added; the report lives until the function returns.
        let answer = unsafe { (self.deliver)(self.context.get(), &raw const given) };
        match answer {
            0 => SinkAnswer::Delivered,
            1 => SinkAnswer::Rejected { reason: "the app's sink rejected it".to_owned() },
            other => {
                SinkAnswer::Retry { after: Duration::from_mins(1), reason: format!("the app's sink returned {other}") }
            }
        }
    }
}

/// Adds an app's sink: `deliver` is called for each report, one at a time, on a Coroner thread.
///
/// The store records under `name` which reports the sink has accepted: use the same name at every
/// launch, and a different one for each sink.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_add_sink(
    config: *mut Config,
    name: *const c_char,
    deliver: DeliverFunction,
    context: *mut c_void,
) -> Status {
    let Some(deliver) = deliver else { return fail(Status::InvalidArgument, "`deliver` is NULL") };
    // SAFETY: as the caller promises.
    let name = match unsafe { text(name, "name") } {
        Ok("") => return fail(Status::InvalidArgument, "`name` is empty"),
        Ok(name) => name.to_owned(),
        Err(status) => return status,
    };
    let sink = AppSink { name, deliver, context: AppPointer(context) };
    // SAFETY: as the caller promises.
    unsafe { change(config, |app: coroner::Config| app.sink(sink)) }
}

/// Sets a function that sees each report before the sinks and can drop it by returning false.
///
/// The function receives the report as JSON. A dropped report is deleted. The function is called at
/// a launch, in coroner_install or on a Coroner thread, possibly twice for the same report. NULL
/// changes nothing. Returns CORONER_STATUS_SYSTEM if the library was built without the feature
/// `json`, like the lean one.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_before_deliver(
    config: *mut Config,
    keep: BeforeDeliverFunction,
    context: *mut c_void,
) -> Status {
    let Some(keep) = keep else { return Status::Ok };
    if !cfg!(feature = "json") {
        return fail(
            Status::System,
            "can't pass reports to the function: this library was built without the feature `json`",
        );
    }
    let context = AppPointer(context);
    let hook = move |report: Report| {
        let json = json(&report);
        // SAFETY: as the caller promises; the string lives until it returns.
        unsafe { keep(context.get(), pointer(json.as_ref())) }.then_some(report)
    };
    // SAFETY: as the caller promises.
    unsafe { change(config, |delivery: Delivery| delivery.before_deliver(hook)) }
}

/// Sets a function to call if the last run crashed and the app has not been notified yet.
///
/// It is called on a Coroner thread. NULL changes nothing.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_config_set_on_crashed_last_run(
    config: *mut Config,
    crashed: CrashedLastRunFunction,
    context: *mut c_void,
) -> Status {
    let Some(crashed) = crashed else { return Status::Ok };
    let context = AppPointer(context);
    let hook = move |last: &coroner::LastRun| {
        let id = c_text(last.event_id.map(|id| id.to_string()).unwrap_or_default());
        // SAFETY: as the caller promises; the string lives until it returns.
        unsafe { crashed(context.get(), id.as_ptr()) };
    };
    // SAFETY: as the caller promises.
    unsafe { change(config, |delivery: Delivery| delivery.on_crashed_last_run(hook)) }
}
