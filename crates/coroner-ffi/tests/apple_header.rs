//! `coroner_apple.h` by clang's parser, as Objective-C and Objective-C++ for Apple's systems, with and without ARC, beside a stand-in for Foundation.
#![cfg(target_os = "linux")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

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
fn an_error_of_cocoa_is_reported_by_one_call() {
    let source = "#import <coroner_apple.h>\nvoid use(NSError *error);\n\
                  void use(NSError *error) { (void)coroner_report_nserror(error); (void)coroner_report_nserror(nil); }\n";
    for target in TARGETS {
        for language in ["objective-c", "objective-c++"] {
            for arc in ["-fobjc-arc", "-fno-objc-arc"] {
                let said = parse(target, language, arc, source);
                assert!(said.status.success(), "{target} {language} {arc}: {}", String::from_utf8_lossy(&said.stderr));
            }
        }
    }
}

/// The parser would say what is wrong.
#[test]
fn what_is_no_error_is_refused() {
    let source = "#import <coroner_apple.h>\nvoid use(NSString *text);\n\
                  void use(NSString *text) { (void)coroner_report_nserror(text); }\n";
    let said = parse(TARGETS[0], "objective-c", "-fobjc-arc", source);
    assert!(!said.status.success());
    assert!(String::from_utf8_lossy(&said.stderr).contains("NSError"));
}
