//! Crash signatures.

use coroner_report::Report;
use coroner_report::model::{
    Crash, CrashFlag, Frame, Image, InAppRules, InlinedFrame, RelativeAddress, Signal, Thread,
};
use coroner_report::signature::{MAX_FRAMES, Rarity, Signature, normalise, similarity};
use coroner_report::wire::Os;

#[test]
fn names_are_the_same_across_builds() {
    for (name, stays) in [
        ("paint::Brush<u8>::fill::h0123456789abcdef", "paint::Brush::fill"),
        ("paint::Brush::<u8>::fill", "paint::Brush::fill"),
        ("void draw<int>(std::vector<int> const&)", "draw"),
        ("shop::Cart::pay(int, (anonymous namespace)::Card const&)", "shop::Cart::pay"),
        ("(anonymous namespace)::parse(char const*)", "{anonymous}::parse"),
        ("paint::main::{{closure}}", "paint::main::{closure}"),
        ("paint::main::{closure#3}", "paint::main::{closure}"),
        ("run(int)::{lambda(int)#2}::operator()(int) const", "run::{lambda}::operator()"),
        ("load.cold", "load"),
        ("load.part.0", "load"),
        ("load [clone .isra.0]", "load"),
        ("load.llvm.1234567", "load"),
        ("malloc@@GLIBC_2.2.5", "malloc"),
        ("<paint::Brush as core::fmt::Display>::fmt", "paint::Brush::fmt"),
        ("<paint::Brush<alloc::vec::Vec<u8>> as core::ops::Fn<()>>::call", "paint::Brush::call"),
        ("<paint::Brush>::call::<fn() -> u8>", "paint::Brush::call"),
        ("-[Cart pay:with:]", "-[Cart pay:with:]"),
        ("bool operator< <int>(Big<int> const&)", "bool operator<"),
        ("_PyEval_EvalFrameDefault", "_PyEval_EvalFrameDefault"),
        ("", ""),
        ("<", ""),
        ("<<<<(((", ""),
        ("a>>>)))b", "a>>>)))b"),
    ] {
        assert_eq!(normalise(name), stays, "{name}");
    }
}

fn report(functions: &[&str]) -> Report {
    let path = "/opt/paint/paint";
    let image = Image { path: path.into(), is_main: true, ..Image::default() };
    let frame = |name: &&str| {
        let (module, name) = name.split_once('!').unwrap_or((path, name));
        Frame { module: Some(module.into()), function: Some((*name).into()), ..Frame::default() }
    };
    let thread = Thread { tid: 1, crashed: true, frames: functions.iter().map(frame).collect(), ..Thread::default() };
    let mut report = Report { images: vec![image], threads: vec![thread], ..Report::default() };
    report.header.os = Os::LINUX;
    let signal = Signal { number: 11, name: Some("SIGSEGV"), ..Signal::default() };
    report.crash = Some(Crash { tid: 1, signal: Some(signal), ..Crash::default() });
    report
}

fn text(functions: &[&str]) -> String {
    Signature::from_report(&report(functions)).to_string()
}

#[test]
fn runtimes_allocators_and_libraries_are_skipped() {
    let own =
        ["/usr/lib/libc.so.6!strlen", "core::str::from_utf8", "malloc", "paint::fill<u8>", "paint::main", "_start"];
    assert_eq!(text(&own), "bad access | paint::fill | paint::main");
    // No frame is the app's own: use named ones.
    assert_eq!(text(&["/usr/lib/libc.so.6!abort", "/usr/lib/libz.so!inflate"]), "bad access | inflate");
    let mut stripped = report(&["x", "y"]);
    for (offset, frame) in stripped.threads[0].frames.iter_mut().enumerate() {
        (frame.function, frame.module_offset) = (None, Some(coroner_report::model::RelativeAddress(offset as u64)));
    }
    assert_eq!(Signature::from_report(&stripped).to_string(), "bad access | paint + 0x0 | paint + 0x1");
}

#[test]
fn inlined_functions_count_and_recursions_are_folded() {
    let inlined = InlinedFrame { function: Some("paint::dot".into()), ..InlinedFrame::default() };
    let mut report = report(&["paint::line", "paint::main"]);
    report.threads[0].frames[0].inlined.push(inlined);
    assert_eq!(Signature::from_report(&report).to_string(), "bad access | paint::dot | paint::line | paint::main");
    let deep: Vec<&str> = ["paint::even", "paint::odd"].into_iter().cycle().take(1001).chain(["paint::main"]).collect();
    assert_eq!(text(&deep), "bad access | paint::even | paint::odd | paint::even | paint::main");
    let many: Vec<String> = (0..99).map(|number| format!("paint::f{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(Signature::from_report(&self::report(&many)).frames.len(), MAX_FRAMES);
}

#[test]
fn a_stack_overflows_signature_is_one_round_of_its_recursion() {
    let overflow = |functions: &[&str]| {
        let mut report = report(functions);
        report.crash.as_mut().unwrap().flags.push(CrashFlag::StackOverflow);
        Signature::from_report(&report).to_string()
    };
    let round = ["paint::odd", "paint::twice", "paint::even"];
    // Whichever function used the last page, whatever it had called there, and however the
    // recursion began.
    for first in 0..3 {
        let rounds = round.into_iter().cycle().skip(first).take(300);
        let stack: Vec<&str> =
            ["paint::leaf"].into_iter().chain(rounds).chain(["paint::start", "paint::main"]).collect();
        assert_eq!(overflow(&stack), "stack overflow | paint::even | paint::odd | paint::twice");
    }
    assert_eq!(overflow(&["paint::down"; 400]), "stack overflow | paint::down");
    let recursion = |functions: &[&str], flags: &[CrashFlag]| {
        let mut report = report(functions);
        report.crash.as_mut().unwrap().flags = flags.to_vec();
        for frame in report.threads[0].frames.iter_mut().filter(|frame| frame.function.as_deref() == Some("?")) {
            (frame.function, frame.module_offset) = (None, Some(RelativeAddress(0x40)));
        }
        Signature::recursion(&report, &InAppRules::default())
    };
    let stack = ["leaf", "paint::b", "paint::a", "paint::b", "paint::a", "paint::b", "paint::a", "main"];
    assert_eq!(recursion(&stack, &[CrashFlag::StackOverflow]), Some(vec!["paint::a".into(), "paint::b".into()]));
    assert_eq!(recursion(&stack, &[]), None);
    assert_eq!(recursion(&stack[..5], &[CrashFlag::StackOverflow]), None, "two rounds may be no recursion");
    assert_eq!(recursion(&["?"; 9], &[CrashFlag::StackOverflow]), None, "the next build has it elsewhere");
    // Without a recursion: two large frames.
    assert_eq!(overflow(&["paint::big", "paint::big", "paint::main"]), "stack overflow | paint::big | paint::main");
}

#[test]
fn ids_distinguish_signatures() {
    let of = |functions: &[&str]| Signature::from_report(&report(functions)).id();
    assert_eq!(of(&["paint::a", "paint::b"]), of(&["paint::a<u8>", "paint::b"]));
    assert_ne!(of(&["paint::a", "paint::b"]), of(&["paint::ab"]));
    assert_eq!(of(&["paint::a"]).len(), 16);
}

#[test]
fn similarity_depends_on_frames_near_the_crash() {
    let of = |functions: &[&str]| Signature::from_report(&report(functions));
    let (a, b) = (of(&["paint::a", "paint::b", "paint::c"]), of(&["paint::a", "paint::b", "paint::d"]));
    let other = of(&["paint::x", "paint::b", "paint::c"]);
    let rarity = Rarity::from_signatures([&a, &b, &other]);
    let like = |a, b| similarity(a, b, &rarity);
    assert!((like(&a, &a) - 1.0).abs() < 1e-9 && (like(&a, &b) - like(&b, &a)).abs() < 1e-9);
    assert!(like(&a, &b) > like(&a, &other), "{} {}", like(&a, &b), like(&a, &other));
    let mut abort = a.clone();
    abort.kind = "abort".into();
    assert!(like(&a, &abort) < 1e-9 && like(&a, &Signature::default()) < 1e-9);
}

#[test]
fn names_are_taken_over_from_the_same_report() {
    let mut named = report(&["paint::fill", "paint::main"]);
    named.threads[0].frames[0].line = Some(7);
    let mut bare = named.clone();
    for frame in &mut bare.threads[0].frames {
        (frame.function, frame.line) = (None, None);
    }
    bare.threads[0].frames[1].address.0 = 4;
    assert_eq!(bare.take_names(&named), 1);
    assert_eq!(bare.threads[0].frames[0], named.threads[0].frames[0]);
    assert_eq!(bare.threads[0].frames[1].function, None, "another address");
    assert_eq!(bare.take_names(&named), 0);
}

#[test]
fn the_frames_of_a_runtime_dont_make_different_places_one() {
    // With `panic=abort`, more frames of the standard library than a signature has are on top.
    let at = |offsets: &[u64]| {
        let mut report = report(&vec!["std::panicking::begin"; offsets.len()]);
        report.images[0].build_id.0 = vec![7; 20];
        for (frame, offset) in report.threads[0].frames.iter_mut().zip(offsets) {
            frame.module_offset = Some(RelativeAddress(*offset));
        }
        Signature::id_of_places(&report).unwrap()
    };
    let std_frames: Vec<u64> = (1..=14).collect();
    let (one, two) = ([&std_frames[..], &[100, 200]].concat(), [&std_frames[..], &[101, 200]].concat());
    assert_ne!(at(&one), at(&two));
    assert_eq!(at(&one), at(&one));
}

#[test]
fn crashes_about_which_nothing_is_known_are_not_the_same() {
    let nothing = Signature { kind: "panic".to_owned(), frames: Vec::new() };
    assert_eq!(similarity(&nothing, &nothing, &Rarity::default()), 0.0);
    // Without a stack, the message and the program decide.
    let panic = |message: &str, program: &str| {
        let mut report = report(&[]);
        report.threads.clear();
        report.header.process_name = program.to_owned();
        report.crash.as_mut().unwrap().message = Some(message.to_owned());
        Signature::from_report(&report)
    };
    let first = panic("the len is 3 but the index is 99", "shop");
    assert_eq!(first, panic("the len is 4 but the index is 7", "shop"));
    assert_ne!(first, panic("called `Option::unwrap()` on a `None` value", "shop"));
    assert_ne!(first, panic("the len is 3 but the index is 99", "paint"));
}

#[test]
fn a_symbol_for_all_code_is_not_a_name() {
    let at = |offset: u64| {
        let mut report = report(&["all_code"]);
        let frame = &mut report.threads[0].frames[0];
        frame.address = coroner_report::model::Address(0x7000_0000 + offset);
        frame.symbol_address = Some(coroner_report::model::Address(0x7000_0000));
        frame.module_offset = Some(RelativeAddress(offset));
        Signature::from_report(&report)
    };
    assert_ne!(at(0x22_a1c8), at(0x4f_0010));
    assert_eq!(at(0x1000).frames, ["all_code"]);
}
