//! The user's decision is stored, however short the process is: real processes.
//!
//! The app is this test program, started again with `CORONER_TEST_STORE` set to run only [`app`].

use std::process::Command;

use coroner::{Config, Delivery, OtlpSink, SentrySink};

const STORE: &str = "CORONER_TEST_STORE";
const BEFORE: &str = "CORONER_TEST_BEFORE";

/// Not a test: the app, when the variable is set. It says no, before or after install, and ends.
#[test]
fn app() {
    let Some(store) = std::env::var_os(STORE) else { return };
    let before = std::env::var_os(BEFORE).is_some();
    let sentry = SentrySink::new("http://key@127.0.0.1:9/1").unwrap();
    let otlp = OtlpSink::new("http://127.0.0.1:9");
    let refuse = || {
        sentry.set_consent(false).unwrap();
        otlp.set_consent(false).unwrap();
    };
    if before {
        refuse();
    }
    let config = Config::new("com.example.paint").store_dir(store).sink(sentry.clone()).sink(otlp.clone());
    coroner::install(config.delivery(Delivery::new().at_install(false))).unwrap();
    if !before {
        assert_eq!((sentry.consent().unwrap(), otlp.consent().unwrap()), (None, None));
        refuse();
    }
    assert_eq!((sentry.consent().unwrap(), otlp.consent().unwrap()), (Some(false), Some(false)));
    std::process::exit(0);
}

#[test]
fn a_refusal_is_stored_even_if_nothing_is_delivered() {
    for before in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "consent::app", "--quiet", "--test-threads=1"])
            .env(STORE, folder.path().join("store"));
        if before {
            command.env(BEFORE, "1");
        }
        assert!(command.status().unwrap().success());
        for sink in ["sentry", "otlp"] {
            let printed = std::fs::read(folder.path().join("store").join(sink).join("consent"));
            assert_eq!(printed.unwrap(), b"", "{sink}, before install: {before}");
        }
    }
}
