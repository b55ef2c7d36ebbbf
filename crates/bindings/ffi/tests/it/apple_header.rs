//! Parses `coroner_apple.h` with clang, with a stub of Foundation.
//!
//! As Objective-C and Objective-C++ for Apple systems, with and without ARC.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use coroner_test_support::has_program;

fn parse(target: &str, language: &str, arc: &str, source: &str) -> Output {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new("clang");
    command.args(["-target", target, "-x", language, arc, "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]);
    command.args(["-ffreestanding", "-nostdlibinc", "-I"]).arg(here.join("include")).arg("-I");
    command.arg(here.join("tests/apple")).arg("-").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("clang");
    child.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

const TARGETS: [&str; 3] = ["x86_64-apple-macos12", "arm64-apple-macos12", "arm64-apple-ios15"];

#[test]
fn an_nserror_is_reported_by_one_call() {
    if !has_program("an_nserror_is_reported_by_one_call", "clang") {
        return;
    }
    let source = "#import <coroner_apple.h>\nvoid use(NSError *error);\n\
                  void use(NSError *error) { (void)coroner_report_nserror(error); (void)coroner_report_nserror(nil); }\n";
    for target in TARGETS {
        for language in ["objective-c", "objective-c++"] {
            for arc in ["-fobjc-arc", "-fno-objc-arc"] {
                let output = parse(target, language, arc, source);
                assert!(
                    output.status.success(),
                    "{target} {language} {arc}: {}",
                    String::from_utf8_lossy(&output.stderr)
                );
            }
        }
    }
}

#[test]
fn metric_kit_payloads_are_added_by_one_call() {
    if !has_program("metric_kit_payloads_are_added_by_one_call", "clang") {
        return;
    }
    let source = "#import <coroner_apple.h>\nvoid use(NSArray<MXDiagnosticPayload *> *payloads);\n\
                  void use(NSArray<MXDiagnosticPayload *> *payloads) { (void)coroner_add_metric_kit_payloads(payloads); }\n";
    for target in TARGETS {
        for language in ["objective-c", "objective-c++"] {
            for arc in ["-fobjc-arc", "-fno-objc-arc"] {
                let output = parse(target, language, arc, source);
                assert!(
                    output.status.success(),
                    "{target} {language} {arc}: {}",
                    String::from_utf8_lossy(&output.stderr)
                );
            }
        }
    }
    // An app that also runs on systems without these diagnostics must check first.
    let output = parse("arm64-apple-ios13", "objective-c", "-fobjc-arc", source);
    assert!(!output.status.success(), "accepted for iOS 13, which has no such payloads");
    let wrong = source.replace("NSArray<MXDiagnosticPayload *>", "NSArray<NSData *>");
    assert!(!parse(TARGETS[0], "objective-c", "-fobjc-arc", &wrong).status.success(), "an array of JSON is accepted");
}

/// Checks the Mac example as far as possible here.
///
/// The parser checks its C code, with the header that its Swift imports as Objective-C; its
/// manifest must name existing folders.
#[test]
fn the_mac_example_is_complete() {
    if !has_program("the_mac_example_is_complete", "clang") {
        return;
    }
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/macos");
    let faults = example.join("Sources/CFaults");
    for (target, language, file) in [
        (TARGETS[0], "c", faults.join("faults.c")),
        (TARGETS[1], "c", faults.join("faults.c")),
        (TARGETS[1], "objective-c", faults.join("include/CFaults.h")),
    ] {
        let include = format!("-I{}", faults.join("include").display());
        let output = parse(target, language, &include, &std::fs::read_to_string(&file).unwrap());
        assert!(output.status.success(), "{target} {}: {}", file.display(), String::from_utf8_lossy(&output.stderr));
    }
    let manifest = std::fs::read_to_string(example.join("Package.swift")).unwrap();
    let names = manifest.split("arget(").skip(1).map(|target| target.split('"').nth(1).unwrap());
    let folders: Vec<_> = names.map(|name| example.join("Sources").join(name)).collect();
    assert!(folders.len() == 2 && folders.iter().all(|folder| folder.is_dir()), "{folders:?}");
}

/// Checks that the parser reports errors.
#[test]
fn the_parser_rejects_an_argument_that_is_not_an_error() {
    if !has_program("the_parser_rejects_an_argument_that_is_not_an_error", "clang") {
        return;
    }
    let source = "#import <coroner_apple.h>\nvoid use(NSString *text);\n\
                  void use(NSString *text) { (void)coroner_report_nserror(text); }\n";
    let output = parse(TARGETS[0], "objective-c", "-fobjc-arc", source);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("NSError"));
}
