//! The shared library's exports.
//!
//! They are the functions of `coroner.h` and the names that it interposes. Linking with it replaces
//! no other name in a program, and no declared function is missing. The soname includes the
//! version.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::common;

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the functions that the header declares with these features.
fn declared_functions() -> BTreeSet<String> {
    let mut command = Command::new(std::env::var_os("CORONER_TEST_CC").unwrap_or("cc".into()));
    command.args(["-E", "-P"]);
    if cfg!(feature = "sentry") {
        command.arg("-DCORONER_SENTRY");
    }
    if cfg!(feature = "otlp") {
        command.arg("-DCORONER_OTLP");
    }
    let text = output(command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include/coroner.h")));
    let parts: Vec<&str> = text.split('(').collect();
    // `(*` follows the result type of a function pointer.
    let before = parts.windows(2).filter(|pair| !pair[1].starts_with('*')).map(|pair| pair[0].trim_end());
    let names = before.filter_map(|before| before.rsplit([' ', '*', '\n', ')', ';', ',']).next());
    names.filter(|name| name.starts_with("coroner_")).map(ToOwned::to_owned).collect()
}

#[test]
fn the_library_exports_only_its_functions_and_interposed_names() {
    let text = output(Command::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(common::library("so")));
    let exported: BTreeSet<String> = text.lines().filter_map(|line| line.split(' ').next()).map(String::from).collect();
    let mut expected = declared_functions();
    assert!(expected.len() > 80 && expected.contains("coroner_install"), "{expected:?}");
    expected.extend(["_exit", "_Exit"].map(String::from));
    if cfg!(feature = "interpose-pthread-create") {
        expected.extend(["pthread_create", "thrd_create"].map(String::from));
    }
    if cfg!(feature = "interpose-cxa-throw") {
        let interposed = ["__cxa_init_primary_exception", "__cxa_rethrow", "__cxa_throw"];
        expected.extend(interposed.map(String::from));
    }
    let unknown: Vec<_> = exported.difference(&expected).collect();
    let missing: Vec<_> = expected.difference(&exported).collect();
    assert!(unknown.is_empty() && missing.is_empty(), "exported but not declared: {unknown:?}; missing: {missing:?}");
}

#[test]
fn the_soname_contains_the_compatible_version() {
    let text = output(Command::new("readelf").args(["--dynamic", "--wide"]).arg(common::library("so")));
    let name = text.lines().filter(|line| line.contains("(SONAME)")).find_map(|line| line.split(['[', ']']).nth(1));
    let (major, minor) = (env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"));
    let version = if major == "0" { format!("0.{minor}") } else { major.to_owned() };
    let expected = cfg!(feature = "soname").then(|| format!("libcoroner_ffi.so.{version}"));
    assert_eq!(name, expected.as_deref(), "{text}");
}
