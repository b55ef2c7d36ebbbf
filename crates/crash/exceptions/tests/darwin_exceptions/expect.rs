//! Starts a case, and compares its report with the expected one.

use coroner_report::model::{CrashFlag, Frame, Report};
use coroner_report::wire::{Language, Monitor};

use crate::cases::{self, Case, Place, Thrower};
use coroner_test_support::death_cases::{name_at, start, the_run};
use coroner_test_support::ensure;

pub(crate) fn check(case: &Case) -> Result<(), String> {
    let store = tempfile::tempdir().map_err(|error| error.to_string())?;
    let ending = start(case.name, store.path(), None)?;
    ensure!(ending == case.ending, "unexpected end: {ending:?} instead of {:?}", case.ending);
    let run = the_run(store.path())?;
    // Those of exceptions that a process survives are numbered from 9 on.
    let goes_on = case.name.starts_with("appkit");
    let report = Report::read_file(run.join(if goes_on { "report-9" } else { "report" }))
        .map_err(|error| format!("{error:?}"))?;
    holds(&report, case).map_err(|error| format!("{error}\n{:#?}\n{:#?}", report.crash, report.exceptions))
}

fn holds(report: &Report, case: &Case) -> Result<(), String> {
    ensure!(report.complete, "the report is incomplete");
    let crash = report.crash.as_ref().ok_or("missing crash record")?;
    let (monitor, language) = match case.thrower {
        Thrower::Cpp if case.name == "thrown-object" => (Monitor::CPP_EXCEPTION, Language::OBJC),
        Thrower::Cpp => (Monitor::CPP_EXCEPTION, Language::CPP),
        Thrower::ObjC => (Monitor::NS_EXCEPTION, Language::OBJC),
    };
    ensure!(crash.monitor == monitor, "its monitor is {:?}", crash.monitor);
    let goes_on = case.name.starts_with("appkit");
    ensure!(crash.has(CrashFlag::NotFatal) == goes_on, "wrong flag for whether the process continues");
    let user_info = report.exceptions.first().and_then(|exception| exception.user_info.as_deref());
    ensure!(user_info == case.user_info, "its user info is {user_info:?}");
    ensure!(crash.signal.is_none() && crash.mach.is_none(), "it has a signal or a Mach exception");
    let thread = report.crashed_thread().ok_or("no thread crashed")?;
    ensure!(thread.main == (case.place == Place::Main), "unexpected crashed thread");
    ensure!(!thread.frames.is_empty(), "the crashed thread has no frames");
    ensure!(
        report.exceptions.len() == case.exceptions.len(),
        "{} exceptions and not {}",
        report.exceptions.len(),
        case.exceptions.len()
    );
    for (exception, expected) in report.exceptions.iter().zip(case.exceptions) {
        ensure!(exception.language == language, "its language is {:?}", exception.language);
        ensure!(exception.type_name.as_deref() == expected.kind, "its type is {:?}", exception.type_name);
        ensure!(exception.message.as_deref() == expected.message, "its message is {:?}", exception.message);
        let names: Vec<_> = exception.frames.iter().map(|frame| name(report, frame, case.thrower)).collect();
        let is_as_expected = names.iter().map(String::as_str).zip(expected.frames).all(|(name, is)| name == *is);
        ensure!(
            names.len() >= expected.frames.len() && is_as_expected,
            "unexpected frames of the throw: {names:?} instead of {:?}",
            expected.frames
        );
    }
    Ok(())
}

/// The function of a frame, by the symbols of the library that throws; an address in any other
/// image.
fn name(report: &Report, frame: &Frame, thrower: Thrower) -> String {
    let path = std::env::var(thrower.variable()).unwrap_or_default();
    let pc = frame.lookup_address().0;
    let image = report.images.iter().find(|image| path.ends_with(&image.path) || image.path.ends_with(&path));
    let offset = image.and_then(|image| pc.checked_sub(image.load_address.0).filter(|offset| *offset < image.size));
    // The library is loaded once and never unloaded.
    let function = || cases::function(cases::library(thrower), thrower.entry());
    offset.and_then(|offset| name_at(function(), offset)).unwrap_or_else(|| format!("{pc:#x}"))
}
