//! The C API called from Rust: invalid arguments are rejected with a status and a reason.

use std::ffi::{CStr, CString, c_void};
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};

use coroner_ffi::backtrace::{
    CaptureOptions, StoredBacktrace, coroner_backtrace_addresses, coroner_backtrace_current, coroner_backtrace_hash,
    coroner_backtrace_is_truncated, coroner_backtrace_names, coroner_backtrace_of_all_threads,
    coroner_backtrace_of_thread, coroner_backtrace_release, coroner_backtrace_text, coroner_set_in_app_images,
    coroner_thread_id,
};
use coroner_ffi::config::{
    coroner_config_free, coroner_config_new, coroner_config_set_hang_threshold, coroner_config_set_store_dir,
    coroner_config_set_version,
};
use coroner_ffi::exception::{
    CodedError, ExceptionFrame, ExceptionLanguage, coroner_report_coded_error, coroner_report_exception,
    coroner_report_foreign_exception,
};
use coroner_ffi::hang::{coroner_hang_beat, coroner_hang_idle};
use coroner_ffi::install::{coroner_install, coroner_last_run, coroner_uninstall};
use coroner_ffi::scope::{
    coroner_add_attachment, coroner_add_breadcrumb, coroner_configure_scope, coroner_count_error, coroner_feedback,
    coroner_keep_attachment, coroner_remove_context, coroner_remove_extra, coroner_set_context, coroner_set_extra,
    coroner_set_fingerprint, coroner_set_flag, coroner_set_level, coroner_set_tag, coroner_set_trace, coroner_set_user,
};
use coroner_ffi::status::{coroner_last_error, coroner_version};
use coroner_ffi::unwind_range::{
    SavedRegister, UnwindRule, coroner_register_unwind_range, coroner_unregister_unwind_range,
};
use coroner_ffi::{Status, install};
use coroner_test_support::isolated;

fn last_error() -> String {
    // SAFETY: never null, and valid until the next failure on this thread.
    unsafe { CStr::from_ptr(coroner_last_error()) }.to_str().unwrap().to_owned()
}

#[test]
fn null_and_invalid_strings_are_rejected_with_a_reason() {
    // SAFETY: null is allowed for strings and configurations, and the other strings are
    // NUL-terminated.
    unsafe {
        assert!(coroner_config_new(null()).is_null());
        assert_eq!(last_error(), "`app` is NULL");
        assert!(coroner_config_new(c"\xff\xfe".as_ptr()).is_null());
        assert!(last_error().contains("UTF-8"), "{}", last_error());
        assert_eq!(coroner_config_set_version(null_mut(), c"1".as_ptr()), Status::InvalidArgument);
        assert_eq!(last_error(), "`config` is NULL");
        assert_eq!(coroner_install(null_mut()), Status::InvalidArgument);
        assert_eq!(coroner_last_run(null_mut()), Status::InvalidArgument);
        assert_eq!(coroner_configure_scope(None, null_mut()), Status::InvalidArgument);
        assert_eq!(last_error(), "`change` is NULL");
        coroner_config_free(null_mut());

        let config = coroner_config_new(c"app".as_ptr());
        assert_eq!(coroner_config_set_version(config, null()), Status::InvalidArgument);
        // A rejected change leaves the configuration unchanged.
        assert_eq!(coroner_config_set_version(config, c"1".as_ptr()), Status::Ok);
        coroner_config_free(config);
        assert_eq!(CStr::from_ptr(coroner_version()).to_str().unwrap(), env!("CARGO_PKG_VERSION"));
    }
}

#[test]
fn backtrace_functions_reject_invalid_arguments() {
    let mut memory = std::mem::MaybeUninit::<StoredBacktrace>::uninit();
    let into = memory.as_mut_ptr();
    // SAFETY: null is rejected or does nothing; `memory` is filled in before it is read, and
    // released once.
    unsafe {
        assert_eq!(coroner_backtrace_current(null_mut(), null()), Status::InvalidArgument);
        assert_eq!(last_error(), "`into` is NULL");
        let mut options = CaptureOptions {
            size: 3,
            depth: 2,
            skip: 0,
            in_app_only: false,
            without_swift_async: false,
            by_ptrace: false,
        };
        assert_eq!(coroner_backtrace_current(into, &raw const options), Status::InvalidArgument);
        assert!(last_error().contains("sizeof(coroner_capture_options)"), "{}", last_error());
        for none in [0, u64::MAX] {
            assert_eq!(coroner_backtrace_of_thread(into, none, null()), Status::InvalidArgument);
            assert_eq!(last_error(), format!("invalid thread id {none}"));
        }
        assert_eq!(coroner_backtrace_of_all_threads(None, null_mut(), null()), Status::InvalidArgument);
        assert_eq!(coroner_backtrace_names(null(), None, null_mut()), Status::InvalidArgument);
        assert_eq!(coroner_set_in_app_images(null(), 1), Status::InvalidArgument);
        coroner_backtrace_release(null_mut());
        let mut count = 7;
        assert!(coroner_backtrace_addresses(null(), &raw mut count).is_null() && count == 0);
        assert_eq!(coroner_backtrace_text(null(), false, null_mut(), 0), 0);

        // A caller that knows only the first two fields, regardless of the memory after them.
        (options.size, options.in_app_only) = (std::mem::offset_of!(CaptureOptions, skip), true);
        assert_eq!(coroner_backtrace_current(into, &raw const options), Status::Ok);
        coroner_backtrace_addresses(into, &raw mut count);
        assert!(count == 2 && coroner_backtrace_is_truncated(into) && coroner_backtrace_hash(into) != 0);
        let mut text = [1_u8; 5];
        let length = coroner_backtrace_text(into, false, text.as_mut_ptr().cast(), text.len());
        assert!(length > 4 && text[4] == 0 && text[..4].iter().all(|byte| *byte > 1), "{text:?}");
        coroner_backtrace_release(into);
    }
}

/// Returns the tag `key` in the state of the store's only run.
fn read_tag(store: &Path) -> String {
    let run = std::fs::read_dir(store.join("runs")).unwrap().next().unwrap().unwrap();
    coroner_report::RunFacts::read_file(run.path().join("state")).unwrap().tags.remove("key").unwrap()
}

#[inline(never)]
fn report_exception() {
    // SAFETY: both strings are NUL-terminated.
    let reported = unsafe { coroner_report_exception(1, c"shop::Closed".as_ptr(), c"come back".as_ptr()) };
    assert_eq!(reported, Status::Ok);
}

#[inline(never)]
fn report_foreign_exception() {
    let report = |language, frames: &[ExceptionFrame], count| {
        let (kind, message) = (c"TypeError".as_ptr(), c"cart is undefined".as_ptr());
        // SAFETY: all strings are NUL-terminated, and there are `count` frames, or none that is
        // read.
        unsafe { coroner_report_foreign_exception(language, kind, message, frames.as_ptr(), count, false, false) }
    };
    let frame = |function: &'static CStr, file: *const std::ffi::c_char, line| ExceptionFrame {
        function: function.as_ptr(),
        file,
        line,
        column: 0,
        in_app: true,
    };
    let frames = [frame(c"total", c"cart.js".as_ptr(), 41), frame(c"main", null(), 0)];
    assert_eq!(report(ExceptionLanguage::Javascript as i32, &frames, 2), Status::Ok, "{}", last_error());
    for none in [ExceptionLanguage::Cpp as i32, ExceptionLanguage::Php as i32 + 1] {
        assert_eq!(report(none, &frames, 2), Status::InvalidArgument);
    }
    // SAFETY: null is allowed where there are no frames.
    let none = unsafe { coroner_report_foreign_exception(9, c"error".as_ptr(), null(), null(), 1, false, false) };
    assert_eq!((none, last_error().as_str()), (Status::InvalidArgument, "`frames` is NULL"));
}

#[inline(never)]
fn report_coded_error() {
    let file = CodedError {
        domain: c"NSCocoaErrorDomain".as_ptr(),
        code: 257,
        description: c"The file can't be opened.".as_ptr(),
    };
    let system = CodedError { domain: c"NSPOSIXErrorDomain".as_ptr(), code: -13, description: null() };
    // SAFETY: all strings are NUL-terminated, and there are `count` errors, or none that is read.
    unsafe {
        let errors = [file, system];
        assert_eq!(coroner_report_coded_error(2, errors.as_ptr(), 2), Status::Ok, "{}", last_error());
        assert_eq!(
            coroner_report_coded_error(1, errors.as_ptr(), 2),
            Status::InvalidArgument,
            "C++ has no coded errors"
        );
        assert_eq!(coroner_report_coded_error(4, null(), 2), Status::InvalidArgument);
        assert_eq!(coroner_report_coded_error(4, errors.as_ptr(), 0), Status::InvalidArgument);
        let nameless = [CodedError { domain: null(), code: 1, description: null() }];
        assert_eq!(coroner_report_coded_error(4, nameless.as_ptr(), 1), Status::InvalidArgument);
    }
}

/// A thread beats and then stops, which is a hang.
#[test]
fn an_unresponsive_thread_is_reported() {
    isolated(concat!(module_path!(), "::an_unresponsive_thread_is_reported"), || {
        let folder = tempfile::tempdir().unwrap();
        let store = CString::new(folder.path().join("store").to_str().unwrap()).unwrap();
        // SAFETY: a configuration from `coroner_config_new`, consumed by `coroner_install`; all
        // strings are NUL-terminated.
        unsafe {
            assert_eq!(coroner_config_set_hang_threshold(null_mut(), 100), Status::InvalidArgument);
            let config = coroner_config_new(c"app".as_ptr());
            assert_eq!(coroner_config_set_store_dir(config, store.as_ptr()), Status::Ok);
            assert_eq!(coroner_config_set_hang_threshold(config, 100), Status::Ok);
            assert_eq!(coroner_install(config), Status::Ok, "{}", last_error());
        }
        let run = folder.path().join("store/runs").join(coroner::installed().unwrap().run_id().to_string());
        let since = || {
            let state = std::fs::read(run.join("state")).unwrap();
            coroner_report::RunFacts::read(&state).unwrap().lifecycle.hang_since
        };
        let wait = |hangs: bool, meanwhile: fn()| {
            let until = std::time::Instant::now() + std::time::Duration::from_mins(1);
            while since().is_some() != hangs {
                assert!(std::time::Instant::now() < until, "the hang was not reported within a minute: {hangs}");
                meanwhile();
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        };
        coroner_hang_beat();
        wait(true, || {});
        wait(false, || coroner_hang_beat());
        coroner_hang_idle();
        assert_eq!(coroner_uninstall(), Status::Ok);
        let report = coroner::Report::read(&std::fs::read(run.join("report-9")).unwrap()).unwrap();
        assert!(report.crash.is_some_and(|crash| crash.hang.is_some()));
    });
}

#[test]
fn a_second_install_is_rejected_until_uninstall() {
    isolated(concat!(module_path!(), "::a_second_install_is_rejected_until_uninstall"), || {
        let folder = tempfile::tempdir().unwrap();
        let store = CString::new(folder.path().join("store").to_str().unwrap()).unwrap();
        // SAFETY: configurations come from `coroner_config_new` and are consumed by
        // `coroner_install`; all strings are NUL-terminated; the backtrace is released once after
        // it was filled in.
        unsafe {
            assert_eq!(coroner_set_tag(c"key".as_ptr(), c"value".as_ptr()), Status::NotInstalled);
            assert_eq!(coroner_uninstall(), Status::NotInstalled);
            // Before install only the calling thread can be captured.
            let mut backtrace = std::mem::MaybeUninit::<StoredBacktrace>::uninit();
            let own = coroner_thread_id();
            assert_eq!(coroner_backtrace_of_thread(backtrace.as_mut_ptr(), own, null()), Status::Ok);
            coroner_backtrace_release(backtrace.as_mut_ptr());
            let other = coroner_backtrace_of_thread(backtrace.as_mut_ptr(), own + 1, null());
            assert_eq!(other, Status::NotInstalled, "{}", last_error());

            let configured = || {
                let config = coroner_config_new(c"app".as_ptr());
                assert_eq!(coroner_config_set_store_dir(config, store.as_ptr()), Status::Ok);
                config
            };
            assert_eq!(coroner_install(configured()), Status::Ok, "{}", last_error());
            assert_eq!(coroner_install(configured()), Status::AlreadyInstalled);
            assert!(last_error().contains("already"), "{}", last_error());

            assert_eq!(coroner_set_tag(c"key".as_ptr(), c"old".as_ptr()), Status::Ok);
            // The function's changes are committed when it returns: it sees the old value in the
            // file.
            unsafe extern "C" fn change(store: *mut c_void) {
                // SAFETY: the path is that of the call below; the strings are NUL-terminated.
                unsafe {
                    assert_eq!(coroner_set_tag(c"key".as_ptr(), c"value".as_ptr()), Status::Ok);
                    assert_eq!(read_tag(&*store.cast::<PathBuf>()), "old");
                }
            }
            let mut path = PathBuf::from(store.to_str().unwrap());
            assert_eq!(coroner_configure_scope(Some(change), (&raw mut path).cast()), Status::Ok);
            assert_eq!(read_tag(&path), "value");
            assert_eq!(coroner_add_breadcrumb(null(), c"message".as_ptr(), 2), Status::Ok);
            assert_eq!(coroner_add_breadcrumb(null(), c"message".as_ptr(), 77), Status::InvalidArgument);

            assert_eq!(coroner_set_user(c"7".as_ptr(), c"Ada".as_ptr(), null()), Status::Ok);
            assert_eq!(coroner_set_user(null(), null(), null()), Status::InvalidArgument);
            assert_eq!(coroner_set_context(c"document".as_ptr(), c"{\"pages\": 3}".as_ptr()), Status::Ok);
            assert_eq!(coroner_set_context(c"document".as_ptr(), c"{pages".as_ptr()), Status::InvalidArgument);
            assert!(last_error().contains("`json` is not valid JSON"), "{}", last_error());
            assert_eq!(coroner_remove_context(c"nothing".as_ptr()), Status::Ok);
            assert_eq!(coroner_set_extra(c"note".as_ptr(), c"\"shown\"".as_ptr()), Status::Ok);
            assert_eq!(coroner_set_extra(c"gone".as_ptr(), c"1".as_ptr()), Status::Ok);
            assert_eq!(coroner_remove_extra(c"gone".as_ptr()), Status::Ok);
            assert_eq!(coroner_set_fingerprint([c"a".as_ptr(), c"b".as_ptr()].as_ptr(), 2), Status::Ok);
            assert_eq!(coroner_set_fingerprint(null(), 1), Status::InvalidArgument);
            assert_eq!((coroner_set_level(3), coroner_set_level(0)), (Status::Ok, Status::InvalidArgument));
            assert_eq!(coroner_count_error(), Status::Ok);
            let (trace, span) = (c"4bf92f3577b34da6a3ce929d0e0e4736".as_ptr(), c"00f067aa0ba902b7".as_ptr());
            assert_eq!(coroner_set_trace(trace, null()), Status::InvalidArgument);
            assert_eq!(coroner_set_trace(span, trace), Status::InvalidArgument);
            assert_eq!((coroner_set_trace(trace, span), coroner_set_trace(null(), null())), (Status::Ok, Status::Ok));
            assert_eq!(coroner_set_trace(trace, span), Status::Ok);
            assert_eq!(coroner_set_flag(null(), true), Status::InvalidArgument);
            assert_eq!(coroner_set_flag(c"new-cart".as_ptr(), true), Status::Ok);
            let (log, kept) = (c"log.txt".as_ptr(), c"screen.png".as_ptr());
            assert_eq!(coroner_add_attachment(null(), log, null()), Status::InvalidArgument);
            assert_eq!(coroner_add_attachment(log, c"/tmp/log".as_ptr(), c"text/plain".as_ptr()), Status::Ok);
            assert_eq!(coroner_add_attachment(c"gone".as_ptr(), c"/tmp/gone".as_ptr(), null()), Status::Ok);
            assert_eq!(coroner_add_attachment(c"gone".as_ptr(), null(), null()), Status::Ok);
            assert_eq!(coroner_keep_attachment(kept, null(), 0, null()), Status::InvalidArgument);
            assert_eq!(coroner_keep_attachment(c"../a".as_ptr(), b"png".as_ptr(), 3, null()), Status::InvalidArgument);
            assert_eq!(coroner_keep_attachment(kept, b"png".as_ptr(), 3, null()), Status::Ok, "{}", last_error());
            let message = c"I only saved".as_ptr();
            assert_eq!(coroner_feedback(c"12".as_ptr(), message, null(), null()), Status::InvalidArgument);
            assert_eq!(coroner_feedback(null(), null(), null(), null()), Status::InvalidArgument);
            assert_eq!(coroner_feedback(trace, message, null(), null()), Status::Full, "a folder accepts no feedback");
            let facts = {
                let run = coroner::installed().unwrap().run_id().to_string();
                let state = std::fs::read(folder.path().join("store/runs").join(run).join("state")).unwrap();
                coroner_report::RunFacts::read(&state).unwrap()
            };
            assert_eq!(facts.user.unwrap().to_json(), serde_json::json!({"id": "7", "username": "Ada"}));
            assert_eq!(facts.contexts["document"].to_json(), serde_json::json!({"pages": 3}));
            assert_eq!(facts.contexts["trace"].to_json()["span_id"], "00f067aa0ba902b7");
            assert_eq!(
                facts.contexts["flags"].to_json()["values"],
                serde_json::json!([{"flag": "new-cart", "result": true}])
            );
            let attached: Vec<_> = facts.attachments.iter().map(|attachment| attachment.name.as_str()).collect();
            assert_eq!(attached, ["log.txt", "screen.png"]);
            assert_eq!(std::fs::read(&facts.attachments[1].path).unwrap(), b"png");
            assert_eq!((facts.extra.len(), facts.fingerprint), (1, vec!["a".to_owned(), "b".to_owned()]));
            assert_eq!(
                (facts.level, facts.session.unwrap().errors),
                (Some(coroner_report::run_state::Level::WARNING), 1)
            );

            report_exception();
            let reports: Vec<_> = std::fs::read_dir(folder.path().join("store/runs"))
                .unwrap()
                .flat_map(|run| std::fs::read_dir(run.unwrap().path()).unwrap())
                .filter_map(|file| coroner_report::Report::read_file(file.unwrap().path()).ok())
                .filter(|report| !report.exceptions.is_empty())
                .collect();
            let [mut report]: [coroner_report::Report; 1] = reports.try_into().unwrap();
            coroner::SymbolSearch::default().symbolicate(&mut report);
            let exception = &report.exceptions[0];
            assert_eq!(
                (exception.type_name.as_deref(), exception.message.as_deref()),
                (Some("shop::Closed"), Some("come back"))
            );
            assert_eq!(exception.frames[0].function.as_deref(), Some("it::abi::report_exception"));

            report_foreign_exception();

            report_coded_error();
            let run = std::fs::read_dir(folder.path().join("store/runs")).unwrap().next().unwrap().unwrap().path();
            let reports = std::fs::read_dir(run)
                .unwrap()
                .filter_map(|file| coroner_report::Report::read_file(file.unwrap().path()).ok());
            let chain = |report: coroner_report::Report| {
                let summary = |thrown: coroner_report::model::Exception| {
                    Some((thrown.type_name?, thrown.message?, thrown.frames.len()))
                };
                report.exceptions.into_iter().map(summary).collect::<Option<Vec<_>>>()
            };
            let coded = reports.filter_map(chain).find(|chain| chain.len() == 2).expect("the chain of errors");
            let texts: Vec<_> = coded.iter().map(|(kind, message, _)| (kind.as_str(), message.as_str())).collect();
            assert_eq!(
                texts,
                [("NSCocoaErrorDomain", "The file can't be opened. (Code: 257)"), ("NSPOSIXErrorDomain", "Code: -13")]
            );
            assert!(coded[0].2 > 1 && coded[1].2 == 0, "only the handled error has a stack");

            let mut last = std::mem::MaybeUninit::<install::LastRun>::zeroed();
            (*last.as_mut_ptr()).size = size_of::<install::LastRun>();
            assert_eq!(coroner_last_run(last.as_mut_ptr()), Status::Ok);
            assert_eq!(last.assume_init().outcome, install::Outcome::FirstLaunch);

            assert_eq!(coroner_uninstall(), Status::Ok);
            assert_eq!(coroner_uninstall(), Status::NotInstalled);
            assert_eq!(coroner_install(configured()), Status::Ok, "{}", last_error());
            assert_eq!(coroner_uninstall(), Status::Ok);
        }
    });
}

#[test]
fn unwind_ranges_are_registered_and_unregistered() {
    isolated(concat!(module_path!(), "::unwind_ranges_are_registered_and_unregistered"), || {
        let sp = coroner::UnwindRule::STACK_POINTER;
        let saved = [
            SavedRegister { number: coroner::UnwindRule::FRAME_POINTER, offset: -16 },
            SavedRegister { number: coroner::UnwindRule::RETURN_ADDRESS, offset: -8 },
        ];
        let rule = UnwindRule {
            size: size_of::<UnwindRule>(),
            cfa_register: sp,
            cfa_offset: 0xe0,
            saved: saved.as_ptr(),
            saved_count: saved.len(),
            outermost: false,
        };
        let start = 0x7000 as *const std::ffi::c_void;
        let mut number = 0;
        // SAFETY: null is allowed for the rule; the rules have `saved_count` registers.
        unsafe {
            assert_eq!(coroner_register_unwind_range(start, 16, null(), &raw mut number), Status::InvalidArgument);
            assert_eq!(last_error(), "`rule` is NULL");
            for (start, size) in [(start, 0), (start, usize::MAX), (null(), 16)] {
                assert_eq!(
                    coroner_register_unwind_range(start, size, &raw const rule, &raw mut number),
                    Status::InvalidArgument
                );
                assert!(last_error().contains("range"), "{}", last_error());
            }
            let bad = [
                UnwindRule { cfa_register: 77, ..rule },
                // A caller that doesn't set the size.
                UnwindRule { size: 0, ..rule },
                UnwindRule { saved: null(), ..rule },
                UnwindRule { saved_count: 33, ..rule },
                UnwindRule { saved: &SavedRegister { number: 1, offset: -16 }, saved_count: 1, ..rule },
            ];
            for bad in &bad {
                assert_eq!(coroner_register_unwind_range(start, 16, bad, &raw mut number), Status::InvalidArgument);
                assert!(last_error().contains("rule"), "{}", last_error());
            }
            assert_eq!(number, 0, "nothing was registered");
            assert_eq!(
                coroner_register_unwind_range(start, 16, &raw const rule, &raw mut number),
                Status::Ok,
                "{}",
                last_error()
            );
            assert_ne!(number, 0);
            assert_eq!(coroner_unregister_unwind_range(number), Status::Ok);
            for gone in [number, 0, u64::MAX] {
                assert_eq!(coroner_unregister_unwind_range(gone), Status::InvalidArgument);
            }
            assert!(last_error().contains("no range"), "{}", last_error());

            // Register rules without saved registers, and outermost ones, up to the limit.
            let plain = UnwindRule { saved: null(), saved_count: 0, ..rule };
            let end = UnwindRule { outermost: true, ..plain };
            let mut numbers = Vec::new();
            let full = loop {
                let rule = if numbers.len() % 2 == 0 { &plain } else { &end };
                match coroner_register_unwind_range(start, 16, rule, &raw mut number) {
                    Status::Ok => numbers.push(number),
                    status => break status,
                }
            };
            assert_eq!((full, numbers.len()), (Status::Full, 512));
            assert!(last_error().contains("512"), "{}", last_error());
            for number in numbers {
                assert_eq!(coroner_unregister_unwind_range(number), Status::Ok);
            }
            assert_eq!(
                coroner_register_unwind_range(start, 16, &raw const plain, null_mut()),
                Status::Ok,
                "a range can be registered permanently"
            );
        }
    });
}

#[cfg(feature = "otlp")]
#[test]
fn an_otlp_sink_is_configured_by_the_app_or_the_environment() {
    use coroner_ffi::config::coroner_config_add_otlp_sink;
    // SAFETY: the strings are NUL-terminated, and the config is freed once.
    unsafe {
        let config = coroner_config_new(c"com.example.c".as_ptr());
        let add =
            |endpoint: *const std::ffi::c_char, headers| coroner_config_add_otlp_sink(config, endpoint, headers, true);
        assert_eq!(add(c"http://127.0.0.1:9".as_ptr(), std::ptr::null()), Status::Ok);
        assert_eq!(add(c"http://127.0.0.1:9".as_ptr(), c"api-key=mine,a=b".as_ptr()), Status::Ok);
        // This test's environment sets no endpoint.
        assert_eq!(add(std::ptr::null(), std::ptr::null()), Status::Ok);
        assert_eq!(add(c"http://127.0.0.1:9".as_ptr(), c"secret".as_ptr()), Status::InvalidArgument);
        assert!(!last_error().contains("secret"), "{}", last_error());
        assert_eq!(
            coroner_config_add_otlp_sink(std::ptr::null_mut(), c"http://h".as_ptr(), std::ptr::null(), false),
            Status::InvalidArgument
        );
        assert_eq!(coroner_ffi::consent::coroner_set_consent(true), Status::Ok);
        coroner_config_free(config);
    }
}
