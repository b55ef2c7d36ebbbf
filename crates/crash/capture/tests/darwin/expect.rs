//! Starts a case, and compares its report with the expected one.

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
    ensure!(ending == case.ending, "unexpected end: expected {:?}, got {ending:?}", case.ending);
    let run = the_run(store.path())?;
    let written = std::fs::read(run.join("report")).map_err(|error| error.to_string())?.iter().any(|byte| *byte != 0);
    ensure!(written == case.report.is_some(), "a report was {}written", if written { "" } else { "not " });
    let Some(expected) = case.report else { return Ok(()) };
    let report = Report::read_file(run.join("report")).map_err(|error| format!("{error:?}"))?;
    holds(&report, case, &expected).map_err(|error| format!("{error}\n{report:#?}"))
}

fn holds(report: &Report, case: &Case, expected: &cases::Report) -> Result<(), String> {
    ensure!(report.complete, "the report is incomplete");
    let mask = if cfg!(target_arch = "aarch64") { u64::MAX << 47 } else { 0 };
    ensure!(
        report.header.pointer_auth_mask.0 == mask,
        "unexpected pointer authentication mask: {:?}",
        report.header.pointer_auth_mask
    );
    let crash = report.crash.as_ref().ok_or("missing crash record")?;
    // The lowest bits of a guard exception's code are a port's name.
    let code = |exception, code: i64| if exception == 12 { code >> 32 << 32 } else { code };
    let mach = crash.mach.as_ref().map(|mach| (mach.exception, code(mach.exception, mach.code)));
    ensure!(mach == expected.mach, "unexpected exception: expected {:?}, got {mach:?}", expected.mach);
    let monitor = if expected.mach.is_some() { Monitor::MACH } else { Monitor::SIGNAL };
    ensure!(crash.monitor == monitor, "unexpected monitor: {:?}", crash.monitor);
    let signal = crash.signal.as_ref().map(|signal| signal.number);
    let no_signal = expected.signal == 0;
    ensure!(
        signal == (!no_signal).then_some(expected.signal),
        "unexpected signal: expected {}, got {signal:?}",
        expected.signal
    );
    if case.death == "guard" {
        let guard = crash.mach.as_ref().map(|mach| mach.subcode);
        ensure!(guard == Some(crate::deaths::GUARD as i64), "unexpected guard: {guard:?}");
    }
    let is_overflow = case.death == "overflow";
    ensure!(crash.has(CrashFlag::StackOverflow) == is_overflow, "wrong stack overflow flag");
    if case.death == "bad-pointer" {
        ensure!(
            crash.address.map(|address| address.0) == Some(0x7_dead_0000),
            "unexpected address: {:?}",
            crash.address
        );
    }
    let thread = report.crashed_thread().ok_or("no thread crashed")?;
    let name = if case.place == Where::Main { None } else { Some(VICTIM) };
    ensure!(thread.main == (case.place == Where::Main), "unexpected crashed thread");
    ensure!(
        name.is_none() || thread.name.as_deref() == name,
        "unexpected name of the crashed thread: {:?}",
        thread.name
    );
    ensure!(thread.name.as_deref() != Some(""), "the thread name is empty");
    let all = names(report, thread);
    if case.death == "abort" {
        // Libc's abort.c calls libpthread's pthread_kill, which makes the system call.
        ensure!(
            all.starts_with(&["__pthread_kill", "pthread_kill", "abort"].map(str::to_owned)),
            "unexpected frames of abort: {all:?}"
        );
    }
    begins_as_threads_do(report, case, thread, &all)?;
    // The number of frames of the system's libraries at the top depends on the system.
    let above = thread.frames.iter().take_while(|frame| is_of_system(report, frame)).count();
    let names = &all[above..];
    let at = names.get(expected.frame).cloned().unwrap_or_default();
    ensure!(
        at.contains(expected.function),
        "unexpected frame {}: expected {}, got {at}: {names:?}",
        expected.frame,
        expected.function
    );
    ensure!(thread.cpu_time.is_some(), "missing processor time");
    if case.death == "in-queue" {
        let label = crate::deaths::QUEUE.to_str().ok();
        ensure!(thread.queue.as_deref() == label, "unexpected queue: {:?}", thread.queue);
        let spent = thread.cpu_time.map_or(0, |time| time.user_ns + time.system_ns);
        ensure!((50_000_000..100_000_000_000).contains(&spent), "unexpected processor time: {spent} ns");
        return images_are_right(report);
    }
    if case.death.ends_with("-task") {
        let is_task = case.death == "in-task";
        ensure!(names[1] == "async_function", "the caller is not the async function: {names:?}");
        let contexts: Vec<_> =
            thread.frames.iter().filter(|frame| frame.address_kind == AddressKind::ASYNC_RESUME).collect();
        ensure!(contexts.len() == usize::from(is_task), "unexpected number of contexts: {}: {names:?}", contexts.len());
        if is_task {
            ensure!(
                names.len() == 3 && names[2] == "resume_waiting",
                "the waiting function is not the last frame: {names:?}"
            );
        } else {
            ensure!(names.iter().any(|name| name == "call_death"), "missing callers: {names:?}");
        }
        return images_are_right(report);
    }
    if !is_overflow {
        let caller = names.get(expected.frame + 1).cloned().unwrap_or_default();
        ensure!(caller == "call_death", "unexpected caller {caller}: {names:?}");
    } else {
        ensure!(
            names.len() > 300 && names.iter().any(|name| name == "die_overflow"),
            "incomplete stack of the overflow: {names:?}"
        );
    }
    let crashed = report.threads.iter().filter(|thread| thread.crashed).count();
    ensure!(crashed == 1 + crash.concurrent_crashes.len(), "{crashed} threads crashed");
    if case.with == "two" {
        // If one crashes after the other, the process has died of the first.
        let both = report.threads.iter().filter(|thread| thread.name.as_deref() == Some(VICTIM)).count();
        ensure!(both == 2, "{both} of the two crashed threads are in the report");
    } else {
        ensure!(crashed == 1, "unexpected concurrent crash");
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

/// Checks that a thread's stack ends at the system's start code, without frames outside code.
fn begins_as_threads_do(report: &Report, case: &Case, thread: &Thread, names: &[String]) -> Result<(), String> {
    // Swift's contexts are not on the stack; that of dyld 4 is in an image that no function knows
    // by name.
    if case.death == "in-task" {
        return Ok(());
    }
    let end = thread.walk_end;
    ensure!(end == Some(WalkEnd::ROOT), "the walk of {:?} ended by {end:?}: {names:?}", thread.name);
    if case.with == "later-from-the-start" && thread.main {
        // This process was started by another dyld, and has no names of that one.
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

/// Returns the functions of a thread's frames, by the symbols of this process's images.
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

/// Returns the load address of the library at this path in this process.
fn header_of(path: &str) -> Option<usize> {
    // SAFETY: only queries dyld; no image is loaded or unloaded meanwhile. The names are strings
    // that live as long as the images.
    unsafe {
        (0..mach2::dyld::_dyld_image_count()).find_map(|index| {
            let name = std::ffi::CStr::from_ptr(mach2::dyld::_dyld_get_image_name(index));
            (name.to_bytes() == path.as_bytes()).then(|| mach2::dyld::_dyld_get_image_header(index) as usize)
        })
    }
}
