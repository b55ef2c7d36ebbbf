//! Objects that are used after they were deallocated: their data in the report, and the sentence in
//! its explanation.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;

use coroner_capture::InstallOptions;
use coroner_report::model::Report;

use crate::cases::{self, Thrower};
use coroner_test_support::death_cases::{Ending, STORE, start, the_run};
use coroner_test_support::ensure;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    /// Begins with `zombie`; what it says the library does.
    pub name: &'static str,
    on_thread: bool,
    /// Class, register, selector and the class of what is there now.
    object: Option<(&'static str, Option<&'static str>, Option<&'static str>)>,
    /// Name and reason of the exception that was deallocated last.
    exception: Option<(&'static str, &'static str)>,
    /// The start of the sentence, and one of the facts.
    says: &'static str,
    fact: Option<&'static str>,
}

#[cfg(target_arch = "x86_64")]
const FIRST: &str = "rdi";
#[cfg(target_arch = "aarch64")]
const FIRST: &str = "x0";

const SENT: &str = "`total` was sent to a deallocated ShopOrder: ";

const fn sent(name: &'static str) -> Case {
    let object = Some(("ShopOrder", Some("total"), None));
    Case {
        name,
        on_thread: false,
        object,
        exception: None,
        says: SENT,
        fact: Some(" is the address of a deallocated ShopOrder"),
    }
}

pub(crate) const CASES: &[Case] = &[
    sent("zombie-sent"),
    Case { on_thread: true, ..sent("zombie-sent-thread") },
    sent("zombie-sent-unmapped"),
    Case {
        object: Some(("ShopProxy", Some("total"), None)),
        says: "`total` was sent to a deallocated ShopProxy: ",
        fact: None,
        ..sent("zombie-sent-proxy")
    },
    // Another crash, without the object in a register.
    Case { object: Some(("ShopOrder", None, None)), says: "Address near null: ", ..sent("zombie-beside") },
    // The address holds another object, and nothing is claimed.
    Case {
        object: Some(("ShopOrder", None, Some("ShopBasket"))),
        says: "Address near null: ",
        fact: Some(" is the address of a ShopBasket, where a ShopOrder was deallocated before"),
        ..sent("zombie-beside-reused")
    },
    Case {
        object: Some(("ShopOrder", None, Some("ShopOrder"))),
        says: "Address near null: ",
        fact: Some(", or of a newer ShopOrder in its place"),
        ..sent("zombie-beside-reused-same")
    },
    // The same fault on an object that was never deallocated; and without the option.
    Case { object: None, says: "Unmapped address: ", fact: None, ..sent("zombie-never") },
    Case { object: None, says: "Unmapped address: ", fact: None, ..sent("zombie-off") },
    Case {
        object: Some(("NSException", Some("total"), None)),
        exception: Some(("NSRangeException", "index 7 beyond bounds")),
        says: "`total` was sent to a deallocated NSException: ",
        fact: Some("last deallocated NSException: NSRangeException: index 7 beyond bounds"),
        ..sent("zombie-exception")
    },
    // Given back at uninstall and replaced again, once.
    sent("zombie-again"),
];

/// Runs the child.
pub(crate) fn run(name: &str) {
    let case = CASES.iter().find(|case| case.name == name).unwrap_or_else(|| panic!("no case is called {name}"));
    let library = cases::library(Thrower::ObjC);
    let store = CString::new(std::env::var_os(STORE).expect("a store").as_bytes()).expect("a path");
    let mut setup = InstallOptions::DEFAULT;
    // Under an emulator on a busy machine.
    setup.deadline_ms = 60_000;
    coroner_capture::install(&store, &setup).expect("installed");
    let options = coroner_exceptions::Options {
        zombies: name != "zombie-off",
        deadline_ms: setup.deadline_ms,
        ..Default::default()
    };
    coroner_exceptions::install(&options);
    if name == "zombie-again" {
        coroner_exceptions::uninstall();
        coroner_exceptions::install(&options);
        coroner_exceptions::install(&options);
    }
    let die = cases::function(library, c"use_deallocated");
    let said = CString::new(name).expect("a name");
    // SAFETY: `void use_deallocated(const char *, int)`.
    unsafe {
        std::mem::transmute::<usize, extern "C" fn(*const libc::c_char, i32)>(die)(
            said.as_ptr(),
            case.on_thread.into(),
        );
    }
}

pub(crate) fn check(case: &Case) -> Result<(), String> {
    let store = tempfile::tempdir().map_err(|error| error.to_string())?;
    let ending = start(case.name, store.path(), None)?;
    ensure!(ending == Ending::Signal(libc::SIGSEGV), "unexpected end: {ending:?}");
    let report = Report::read_file(the_run(store.path())?.join("report")).map_err(|error| format!("{error:?}"))?;
    holds(&report, case).map_err(|error| format!("{error}\n{:#?}\n{:#?}", report.crash, report.zombies))
}

fn holds(report: &Report, case: &Case) -> Result<(), String> {
    ensure!(report.complete, "the report is incomplete");
    let thread = report.crashed_thread().ok_or("no thread crashed")?;
    ensure!(thread.main != case.on_thread, "unexpected crashed thread");
    let (objects, exceptions): (Vec<_>, Vec<_>) = report.zombies.iter().partition(|zombie| zombie.register.is_some());
    // A register with the same value as another is not named.
    ensure!(objects.len() == usize::from(case.object.is_some()), "{} objects", objects.len());
    if let (Some((class, selector, now)), Some(zombie)) = (case.object, objects.first()) {
        ensure!(zombie.class == class, "its class is {}", zombie.class);
        ensure!(zombie.register.as_deref() == Some(FIRST), "its register is {:?}", zombie.register);
        ensure!(zombie.selector.as_deref() == selector, "its selector is {:?}", zombie.selector);
        ensure!(zombie.class_now.as_deref() == now, "unexpected current class: {:?}", zombie.class_now);
    }
    let said =
        exceptions.first().map(|last| (last.name.as_deref().unwrap_or(""), last.reason.as_deref().unwrap_or("")));
    ensure!(said == case.exception, "unexpected last exception: {said:?}");
    let explanation = coroner_explain::explain(report, &coroner_explain::NoCode);
    ensure!(explanation.headline.starts_with(case.says), "it says {:?}", explanation.headline);
    let facts = &explanation.facts;
    ensure!(
        case.fact.is_none_or(|fact| facts.iter().any(|known| known.ends_with(fact))),
        "unexpected facts: {facts:?}"
    );
    ensure!(case.object.is_some() || !facts.join(" ").contains("Shop"), "it claims {facts:?}");
    Ok(())
}
