//! The specification (`docs/report.cddl`) and the code agree.

use crate::common::{File, full_report};
use cddl_cat::validate_cbor_bytes;
use coroner_report::reader::{FrameEvent, Frames};
use coroner_report::run_state::{Breadcrumb, Fact, FactsEncoder, Level};
use coroner_report::wire::keys::MAPS;
use coroner_report::wire::{
    Access, AddressKind, CaptureMethod, Encoder, ExtraRegister, FoundBy, ImageKind, Language, Monitor, NotCaptured, Os,
    Phase, SectionKind, ThreadState, UnwindKind, WalkEnd,
};
use std::collections::{BTreeMap, BTreeSet};

const TEXT: &str = include_str!("../../../../../docs/report.cddl");

/// Returns the specification without the tag, which the checker doesn't support.
fn specification() -> String {
    assert!(TEXT.contains("#6.55799(section)"));
    TEXT.replace("#6.55799(section)", "section")
}

/// Returns the specification without the freedom for later versions: only named items are valid.
fn strict() -> String {
    let text = specification();
    let strict: String = text.lines().filter(|line| line.trim() != "* uint => any,").collect::<Vec<_>>().join("\n");
    assert!(strict.len() < text.len());
    strict
}

/// Returns the rule for a kind of section.
fn rule(kind: SectionKind) -> String {
    kind.name().expect("known").replace('_', "-")
}

fn check(rule: &str, specification: &str, cbor: &[u8]) {
    if let Err(error) = validate_cbor_bytes(rule, specification, cbor) {
        panic!("{rule}: {error}");
    }
}

/// Returns the required and optional keys of every map in the specification, by its rule.
fn specified_keys() -> BTreeMap<String, (BTreeSet<u64>, BTreeSet<u64>)> {
    let mut maps = BTreeMap::new();
    let mut lines = TEXT.lines();
    while let Some(line) = lines.next() {
        let Some((rule, "{" | "[* {")) = line.split_once(" = ") else { continue };
        let (mut required, mut optional) = (BTreeSet::new(), BTreeSet::new());
        for line in lines.by_ref().take_while(|line| !line.starts_with('}')) {
            let (keys, line) = match line.trim().strip_prefix("? ") {
                Some(line) => (&mut optional, line),
                None => (&mut required, line.trim()),
            };
            let key = line.split_once(": ").and_then(|(key, _)| key.parse().ok());
            assert!(key.is_none_or(|key| keys.insert(key)), "{rule}: {line}");
        }
        maps.insert(rule.replace('-', "_"), (required, optional));
    }
    maps
}

#[test]
fn keys_match_the_specification() {
    let keys = |keys: &[u64]| keys.iter().copied().collect::<BTreeSet<u64>>();
    let mut code: BTreeMap<String, _> =
        MAPS.iter().map(|(map, required, optional)| ((*map).to_owned(), (keys(required), keys(optional)))).collect();
    let facts = Fact::ALL.iter().map(|(fact, _)| u64::from(fact.0)).collect();
    code.insert("facts".to_owned(), (BTreeSet::new(), facts));
    assert_eq!(code, specified_keys());
    for (map, (required, optional)) in &code {
        assert!(required.is_disjoint(optional), "{map}");
    }
}

#[test]
fn sections_match_the_specification() {
    let strict = strict();
    let file = full_report();
    let mut kinds = Vec::new();
    for event in Frames::new(&file.bytes) {
        let FrameEvent::Section(section) = event else { continue };
        check(&rule(section.kind), &specification(), section.payload);
        check(&rule(section.kind), &strict, section.payload);
        kinds.push(section.kind);
    }
    for (kind, name) in SectionKind::ALL {
        let is_added_later = matches!(*kind, SectionKind::RUN_STATE | SectionKind::SYSTEM_REPORT);
        assert!(kinds.contains(kind) || is_added_later, "{name} is not in the sample");
    }
}

#[test]
fn section_frames_match_the_specification() {
    let file = full_report();
    // Tag 55799, then the tagged item.
    assert_eq!(file.bytes[..3], [0xD9, 0xD9, 0xF7]);
    check("first-section", &specification(), &file.bytes[3..file.ends[0].0]);
    for ends in file.ends.windows(2) {
        check("section", &specification(), &file.bytes[ends[0].0..ends[1].0]);
    }
}

#[test]
fn the_specification_check_rejects_invalid_data() {
    let refuse = |rule: &str, specification: &str, write: &dyn Fn(&mut Encoder<'_>)| {
        let mut buffer = [0; 100];
        let mut encoder = Encoder::new(&mut buffer);
        write(&mut encoder);
        assert!(validate_cbor_bytes(rule, specification, encoder.written()).is_err());
    };
    let later = |encoder: &mut Encoder<'_>| {
        encoder.map(2);
        encoder.uint(0);
        encoder.bool(true);
        encoder.uint(77);
        encoder.text(b"later");
    };
    let mut file = File::new();
    file.section(SectionKind::END, later);
    let Some(FrameEvent::Section(section)) = Frames::new(&file.bytes).next() else { panic!("whole") };
    check("end", &specification(), section.payload);
    refuse("end", &strict(), &later);
    refuse("end", &specification(), &|encoder| encoder.map(0));
    refuse("end", &specification(), &|encoder| {
        encoder.map(1);
        encoder.uint(0);
        encoder.uint(1);
    });
}

#[test]
fn facts_and_breadcrumbs_match_the_specification() {
    let mut buffer = [0; 4096];
    let mut facts = FactsEncoder::new(Encoder::new(&mut buffer));
    for (fact, _) in Fact::ALL {
        match *fact {
            Fact::PID
            | Fact::PROCESS_START
            | Fact::INSTALLED
            | Fact::APP_WATCHDOG
            | Fact::DEVICE_PROCESSOR_COUNT
            | Fact::DEVICE_MEMORY_SIZE
            | Fact::DEVICE_BOOT_TIME => facts.uint(*fact, 7),
            Fact::OS_ROOTED | Fact::DEVICE_SIMULATOR => facts.bool(*fact, true),
            fact => facts.text(fact, "text"),
        }
    }
    facts.finish();
    assert_eq!(facts.left_out(), 0);
    check("facts", &strict(), facts.written());

    let breadcrumb = Breadcrumb {
        time_ns: 1,
        level: Level::INFO,
        kind: "http",
        category: "net",
        message: "GET",
        data: Some(&[0xA0]),
    };
    let mut encoder = Encoder::new(&mut buffer);
    breadcrumb.encode(&mut encoder);
    check("breadcrumb", &strict(), encoder.written());
}

/// Every number with a name in the code is in the specification's comments, with that name's words.
#[test]
fn every_number_is_in_the_specification() {
    let text = TEXT.to_lowercase().replace(['\n', ';'], " ");
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut numbers = 0;
    let mut look = |number: u64, name: &str| {
        // The names that the comments write differently.
        let words = match name {
            "cpp_exception" => "c++ exception".to_owned(),
            "nsexception" => "nsexception".to_owned(),
            "panic" => "rust panic".to_owned(),
            "mach" if number == 2 => "mach exception".to_owned(),
            "user" => "the app asked".to_owned(),
            "compact" => "compact unwind".to_owned(),
            "registered" => "registered range".to_owned(),
            "return" => "return address".to_owned(),
            "async_resume" => "async resume address".to_owned(),
            "macho" => "mach-o".to_owned(),
            "cpp" => "c++".to_owned(),
            "csharp" => "c#".to_owned(),
            "objc" => "objective-c".to_owned(),
            "unwind_info" => "__unwind_info".to_owned(),
            "eh_frame_hdr" | "eh_frame" | "debug_frame" => format!(".{name}"),
            "stack_memory" | "symbol_names" | "run_state" | "system_report" | "replaced_images" | "app_memory"
                if number > 4 && text.contains(&format!("{number} {}", name.replace('_', "-"))) =>
            {
                name.replace('_', "-")
            }
            name => name.replace('_', " "),
        };
        assert!(text.contains(&format!("{number} {words}")), "{number} {words}");
        numbers += 1;
    };
    macro_rules! all {
        ($($name:ident)*) => {
            $(for (number, name) in $name::ALL { look(u64::from(number.0), name); })*
        };
    }
    all!(SectionKind Os Monitor Access ThreadState CaptureMethod NotCaptured FoundBy AddressKind WalkEnd ExtraRegister ImageKind
        UnwindKind Language Phase Level);
    assert!(numbers > 90, "{numbers}");
}
