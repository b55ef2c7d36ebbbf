//! Functions of the app's that a launch calls for the reports of earlier ones.

use std::ffi::{CString, c_char, c_void};
use std::time::Duration;

use coroner::{Delivery, Report, Sink, SinkAnswer, Submission};

use crate::app_pointer::AppPointer;
use crate::config::{Config, change};
use crate::status::{Status, fail};
use crate::text::text;

/// What a sink of the app's made of a report, as coroner_sink_deliver returns it.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivered {
    /// It has it, for good.
    Taken = 0,
    /// It will never take it, and is not asked again.
    Rejected = 1,
    /// It could not take it now: it is asked again at a launch or coroner_flush, a minute later at the earliest.
    Retry = 2,
}

/// A report that a sink of the app's is given. All of it is valid until the function returns.
#[repr(C)]
#[derive(Debug)]
pub struct GivenReport {
    /// The event id: 32 hexadecimal digits. The same report may come twice, and has the same id then.
    pub event_id: *const c_char,
    /// The report as JSON (docs/report-format.md). NULL in a library without the feature `json`, such as the lean one.
    pub json: *const c_char,
    /// The report as a file, as a folder has it (`.coroner`): what the dying process wrote, with tags, user and breadcrumbs. `coroner show` reads it. Secrets
    /// in its texts are not hidden.
    pub raw: *const u8,
    /// How many bytes `raw` has.
    pub raw_length: usize,
}

/// Takes a report; returns one of coroner_delivered. Any other number is taken for CORONER_DELIVERED_RETRY. It may take its time.
pub type DeliverFunction = Option<unsafe extern "C" fn(context: *mut c_void, report: *const GivenReport) -> i32>;

/// Sees a report as JSON; returns whether the sinks get it.
pub type BeforeDeliverFunction = Option<unsafe extern "C" fn(context: *mut c_void, json: *const c_char) -> bool>;

/// Is called with the event id of the crash, 32 hexadecimal digits; empty if it left no report.
pub type CrashedLastRunFunction = Option<unsafe extern "C" fn(context: *mut c_void, event_id: *const c_char)>;

/// A text for C. Ids and JSON have no NUL in them.
fn c_text(text: impl Into<Vec<u8>>) -> CString {
    CString::new(text).unwrap_or_default()
}

/// The report as JSON; `None` without that feature.
fn json(report: &Report) -> Option<CString> {
    cfg!(feature = "json").then(|| c_text(serde_json::to_string(report).unwrap_or_default()))
}

fn pointer(text: Option<&CString>) -> *const c_char {
    text.map_or(std::ptr::null(), |text| text.as_ptr())
}

struct AppSink {
    name: String,
    deliver: unsafe extern "C" fn(*mut c_void, *const GivenReport) -> i32,
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
        // SAFETY: as who added the sink promises; what is given lives until it returns.
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

/// Adds a sink of the app's own: `deliver` is called for each report, one at a time, on a thread of Coroner's. The store remembers under
/// `name` what it has taken: the same at every launch, and no other sink's.
///
/// # Safety
/// `config` is from `coroner_config_new`; `name` is a text that ends with a NUL; `deliver` can be called with `context` on any thread, for
/// the process's life.
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

/// Sets a function that sees each report before the sinks, as JSON, and may keep it from them: a report for which it returns false is
/// removed. It is called at a launch, in coroner_install or on a thread of Coroner's, and may be called twice for one report. NULL changes nothing.
/// CORONER_STATUS_SYSTEM if the library was built without the feature `json`, as the lean one is.
///
/// # Safety
/// `config` is from `coroner_config_new`; `keep` can be called with `context` on any thread, for the process's life.
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
            "this library was built without the feature `json`, by which the function sees reports",
        );
    }
    let context = AppPointer(context);
    let hook = move |report: Report| {
        let json = json(&report);
        // SAFETY: as the caller promises; the text lives until it returns.
        unsafe { keep(context.get(), pointer(json.as_ref())) }.then_some(report)
    };
    // SAFETY: as the caller promises.
    unsafe { change(config, |delivery: Delivery| delivery.before_deliver(hook)) }
}

/// Sets a function that is called, on a thread of Coroner's, when the last run crashed and the app has not been notified yet. NULL changes nothing.
///
/// # Safety
/// `config` is from `coroner_config_new`; `crashed` can be called with `context` on any thread, for the process's life.
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
        // SAFETY: as the caller promises; the text lives until it returns.
        unsafe { crashed(context.get(), id.as_ptr()) };
    };
    // SAFETY: as the caller promises.
    unsafe { change(config, |delivery: Delivery| delivery.on_crashed_last_run(hook)) }
}
