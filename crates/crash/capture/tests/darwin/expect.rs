//! Starting a case, and holding its report to what it must say.

use std::cell::RefCell;
use std::collections::HashMap;

use coroner_report::model::{CrashFlag, Frame, Image, Report, Thread};
use coroner_report::wire::{AddressKind, Monitor, WalkEnd};

use crate::cases::{self, Case, VICTIM, Where};
use coroner_test_support::death_cases::{name_at, start, the_run};
use coroner_test_support::ensure;

pub(crate) fn check(case: &Case) -> Result<(), String> {
    let store = tempfile::tempdir().map_err(|error| error.to_string())?;
    let system = (case.with == "later-from-the-start").then_some((crate::host::SYSTEM, "14"));
    let ending = start(case.name, store.path(), system)?;
    ensure!(ending == case.ending, "it ended by {ending:?} and not by {:?}", case.ending);
    let run = the_run(store.path())?;
    let written = std::fs::read(run.join("report")).map_err(|error| error.to_string())?.iter().any(|byte| *byte != 0);
    ensure!(written == case.report.is_some(), "a report was {}written", if written { "" } else { "not " });
    let Some(expected) = case.report else { return Ok(()) };
    let report = Report::read_file(run.join("report")).map_err(|error| format!("{error:?}"))?;
    holds(&report, case, &expected).map_err(|error| format!("{error}\n{report:#?}"))
}

fn holds(report: &Report, case: &Case, expected: &cases::Report) -> Result<(), String> {
    ensure!(report.complete, "it is not complete");
    let mask = if cfg!(target_arch = "aarch64") { u64::MAX << 47 } else { 0 };
    ensure!(
        report.header.pointer_auth_mask.0 == mask,
        "its pointers have other codes: {:?}",
        report.header.pointer_auth_mask
    );
    let crash = report.crash.as_ref().ok_or("it does not say what happened")?;
    // Of a guard the lowest bits are a port's name.
    let code = |exception, code: i64| if exception == 12 { code >> 32 << 32 } else { code };
    let mach = crash.mach.as_ref().map(|mach| (mach.exception, code(mach.exception, mach.code)));
    ensure!(mach == expected.mach, "its exception is {mach:?} and not {:?}", expected.mach);
    let monitor = if expected.mach.is_some() { Monitor::MACH } else { Monitor::SIGNAL };
    ensure!(crash.monitor == monitor, "its monitor is {:?}", crash.monitor);
    let signal = crash.signal.as_ref().map(|signal| signal.number);
    let no_signal = expected.signal == 0;
    ensure!(signal == (!no_signal).then_some(expected.signal), "its signal is {signal:?} and not {}", expected.signal);
    if case.death == "guard" {
        let guard = crash.mach.as_ref().map(|mach| mach.subcode);
        ensure!(guard == Some(crate::deaths::GUARD as i64), "its guard is {guard:?}");
    }
    let is_overflow = case.death == "overflow";
    ensure!(crash.has(CrashFlag::StackOverflow) == is_overflow, "it says the wrong thing of a stack overflow");
    if case.death == "bad-pointer" {
        ensure!(crash.address.map(|address| address.0) == Some(0x7_dead_0000), "its address is {:?}", crash.address);
    }
    let thread = report.crashed_thread().ok_or("no thread crashed")?;
    let name = if case.place == Where::Main { None } else { Some(VICTIM) };
    ensure!(thread.main == (case.place == Where::Main), "the crashed thread is the wrong one");
    ensure!(name.is_none() || thread.name.as_deref() == name, "the crashed thread is called {:?}", thread.name);
    ensure!(thread.name.as_deref() != Some(""), "no name is a name");
    let all = names(report, thread);
    if case.death == "abort" {
        // Libc's abort.c calls libpthread's pthread_kill, which makes the system call.
        ensure!(all.starts_with(&["__pthread_kill", "pthread_kill", "abort"].map(str::to_owned)), "abort is {all:?}");
    }
    begins_as_threads_do(report, case, thread, &all)?;
    // Those of the system's libraries at the top are the system's affair.
    let above = thread.frames.iter().take_while(|frame| is_of_system(report, frame)).count();
    let names = &all[above..];
    let at = names.get(expected.frame).cloned().unwrap_or_default();
    ensure!(
        at.contains(expected.function),
        "frame {} is {at} and not {}: {names:?}",
        expected.frame,
        expected.function
    );
    ensure!(thread.cpu_time.is_some(), "nothing is said of its processor time");
    if case.death == "in-queue" {
        let label = crate::deaths::QUEUE.to_str().ok();
        ensure!(thread.queue.as_deref() == label, "its queue is {:?}", thread.queue);
        let spent = thread.cpu_time.map_or(0, |time| time.user_ns + time.system_ns);
        ensure!((50_000_000..100_000_000_000).contains(&spent), "it has had {spent} ns of processor time");
        return images_are_right(report);
    }
    if case.death.ends_with("-task") {
        let is_task = case.death == "in-task";
        ensure!(names[1] == "async_function", "the async function is not below the death: {names:?}");
        let contexts: Vec<_> =
            thread.frames.iter().filter(|frame| frame.address_kind == AddressKind::ASYNC_RESUME).collect();
        ensure!(contexts.len() == usize::from(is_task), "{} contexts were followed: {names:?}", contexts.len());
        if is_task {
            ensure!(names.len() == 3 && names[2] == "resume_waiting", "who waits is not the last: {names:?}");
        } else {
            ensure!(names.iter().any(|name| name == "call_death"), "its callers are not there: {names:?}");
        }
        return images_are_right(report);
    }
    if !is_overflow {
        let caller = names.get(expected.frame + 1).cloned().unwrap_or_default();
        ensure!(caller == "call_death", "its caller is {caller}: {names:?}");
    } else {
        ensure!(names.len() > 300 && names.iter().any(|name| name == "die_overflow"), "the overflow's ends: {names:?}");
    }
    let crashed = report.threads.iter().filter(|thread| thread.crashed).count();
    ensure!(crashed == 1 + crash.concurrent_crashes.len(), "{crashed} threads crashed");
    if case.with == "two" {
        // They may come one after the other: then the process has died of the first.
        let both = report.threads.iter().filter(|thread| thread.name.as_deref() == Some(VICTIM)).count();
        ensure!(both == 2, "{both} of the two victims are in it");
    } else {
        ensure!(crashed == 1, "it has a concurrent crash");
    }
    let parked: Vec<_> = report
        .threads
        .iter()
        .filter(|thread| thread.name.as_deref().is_some_and(|name| name.starts_with("parked-")))
        .collect();
    ensure!(parked.len() == case.parked, "{} of {} waiting threads are in it", parked.len(), case.parked);
    for thread in parked {
        let names = self::names(report, thread);
        ensure!(names.iter().any(|name| name == "park_here"), "{:?} waits in {names:?}", thread.name);
        begins_as_threads_do(report, case, thread, &names)?;
    }
    let own =
        report.threads.iter().find(|thread| thread.name.as_deref().is_some_and(|name| name.starts_with("coroner.")));
    ensure!(own.is_none(), "Coroner's own thread {own:?} is in it");
    let words: Vec<_> = report.annotations.iter().map(|annotation| annotation.text.as_str()).collect();
    ensure!(
        words == [crate::deaths::LAST_WORDS.to_str().unwrap_or_default()],
        "the program's last words are {words:?}"
    );
    images_are_right(report)
}

fn images_are_right(report: &Report) -> Result<(), String> {
    let main: Vec<_> = report.images.iter().filter(|image| image.is_main).collect();
    ensure!(main.len() == 1, "{} images are the program", main.len());
    ensure!(!main[0].segments.is_empty(), "the program has no segments");
    ensure!(
        report.images.iter().any(|image| image.path.ends_with("libsystem_kernel.dylib")),
        "no libsystem_kernel.dylib"
    );
    Ok(())
}

/// A thread's stack ends where the system's code begins it, and with nothing that is no code.
fn begins_as_threads_do(report: &Report, case: &Case, thread: &Thread, names: &[String]) -> Result<(), String> {
    // Swift's contexts are not on the stack; that of dyld 4 is in an image that no function knows
    // by name.
    if case.death == "in-task" {
        return Ok(());
    }
    let end = thread.walk_end;
    ensure!(end == Some(WalkEnd::ROOT), "the walk of {:?} ended by {end:?}: {names:?}", thread.name);
    if case.with == "later-from-the-start" && thread.main {
        // This process began by another dyld, and has no names of that one.
        let path = thread.frames.last().and_then(|frame| image_of(report, frame)).map(|image| image.path.as_str());
        ensure!(path == Some("/usr/lib/dyld"), "the main thread's stack ends in {path:?}: {names:?}");
        return Ok(());
    }
    let last = names.last().cloned().unwrap_or_default();
    let wanted = if thread.main { "start" } else { "thread_start" };
    ensure!(last == wanted, "the stack of {:?} ends in {last}: {names:?}", thread.name);
    Ok(())
}

fn image_of<'r>(report: &'r Report, frame: &Frame) -> Option<&'r Image> {
    let pc = frame.lookup_address().0;
    let holds = |image: &&Image| pc.checked_sub(image.load_address.0).is_some_and(|offset| offset < image.size);
    report.images.iter().find(holds)
}

fn is_of_system(report: &Report, frame: &Frame) -> bool {
    image_of(report, frame).is_some_and(|image| image.path.starts_with("/usr/lib/"))
}

/// The functions of a thread's frames, by the symbols of this process's own images.
fn names(report: &Report, thread: &Thread) -> Vec<String> {
    let name = |frame: &Frame| name(report, frame).unwrap_or_else(|| format!("{:#x}", frame.address.0));
    thread.frames.iter().map(name).collect()
}

fn name(report: &Report, frame: &Frame) -> Option<String> {
    // Each place is looked up once: dladdr goes through all symbols, and a hundred threads wait at
    // the same few places.
    thread_local!(static KNOWN: RefCell<HashMap<(String, u64), Option<String>>> = RefCell::default());
    let image = image_of(report, frame)?;
    let within = if image.is_main { check as *const () as usize } else { header_of(&image.path)? };
    let offset = frame.lookup_address().0 - image.load_address.0;
    KNOWN.with_borrow_mut(|known| {
        known.entry((image.path.clone(), offset)).or_insert_with(|| name_at(within, offset)).clone()
    })
}

/// Where this process has the library of that path.
fn header_of(path: &str) -> Option<usize> {
    // SAFETY: plain questions to dyld; no image comes or goes meanwhile. The names are strings that
    // live as long as the images.
    unsafe {
        (0..mach2::dyld::_dyld_image_count()).find_map(|index| {
            let name = std::ffi::CStr::from_ptr(mach2::dyld::_dyld_get_image_name(index));
            (name.to_bytes() == path.as_bytes()).then(|| mach2::dyld::_dyld_get_image_header(index) as usize)
        })
    }
}
