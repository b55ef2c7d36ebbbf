//! The report and the run state, which cross from crash time to the next launch, and the reports of
//! other tools. They may come from a dying process, a failing disk, or an attacker.

use std::cell::RefCell;
use std::sync::atomic::AtomicU64;

use coroner_explain::{Code, CodeSource};
use coroner_formats::apple_report::AppleReport;
use coroner_formats::dump::Form;
use coroner_report::{
    Report,
    model::{Address, RunFacts},
    run_state::{Breadcrumb, Kind, Level, Limits, MAGIC, ProcessIdentity, RunState},
    text::{TextOptions, ThreadFilter},
    wire::{self, FILE_PREFIX, FRAME_HEADER_LEN, SectionKind, crc32c},
};
use coroner_sentry::envelope::Envelope;
use coroner_sentry::event::{Event, EventOptions};
use coroner_symbols::{Options, Symbolizer};

/// The largest event that servers accept, in bytes.
const MAX_EVENT_BYTES: usize = 1 << 20;

/// Does everything that happens to a report before it is delivered.
fn exercise(file: &[u8]) {
    let Ok(mut report) = Report::read(file) else { return };
    for problem in &report.problems {
        assert!(problem.offset <= file.len() as u64, "a problem past the end of the file: {problem}");
    }
    let json = report.to_json();
    assert_eq!(
        Report::read(file).expect("it could be read before").to_json(),
        json,
        "different reports from the same input"
    );
    serde_json::from_str::<serde_json::Value>(&json).expect("the report's JSON parses");
    report.attribute_frames();
    let options = TextOptions { threads: ThreadFilter::All, ..TextOptions::default() };
    assert!(!report.to_text(&options).is_empty());
}

/// A report file: frames, lengths and checksums. Most mutations fail a checksum.
pub fn report_file(input: &[u8]) {
    exercise(input);
}

/// A report whose sections have correct checksums and arbitrary contents. Each section is
/// `kind, length (2 bytes), payload`.
pub fn report_sections(input: &[u8]) {
    exercise(&file_of_sections(input));
}

/// A report as it is delivered: an event in its envelope, and a minidump. The input is the length
/// of the sections (2 bytes), the sections as in [`report_sections`], and the run state's values as
/// in [`run_state_values`].
pub fn report_writers(input: &[u8]) {
    let (length, rest) = input.split_first_chunk::<2>().unwrap_or((&[0; 2], input));
    let (sections, values) = rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()));
    let Ok(mut report) = Report::read(&file_of_sections(sections)) else { return };
    if let Ok(facts) = RunFacts::read(&state_of_values(values)) {
        report.stitch(facts);
    }
    let event = Event::from_report(&report, &EventOptions::default());
    let json = event.to_json();
    assert!(json.len() <= MAX_EVENT_BYTES, "the event has {} bytes; the limit is {MAX_EVENT_BYTES}", json.len());
    let envelope = Envelope::from_event(&event);
    let again = Envelope::parse(&envelope.to_bytes()).expect("a written envelope parses");
    assert_eq!(again, envelope);
    let mut event = event.to_value();
    coroner_sentry::extensions::remove_all(&mut event);
    let read: coroner_sentry::protocol::Event = serde_json::from_value(event.clone()).expect("an event");
    assert_eq!(serde_json::to_value(read).expect("JSON"), event, "sentry-types changes the event");
    if let Ok(dump) = coroner_formats::minidump_writer::from_report(&report) {
        assert!(dump.starts_with(b"MDMP"));
        check_streams(&dump);
    }
}

/// A crash's explanation. The input is the length of the sections (2 bytes), the sections as in
/// [`report_sections`], and the code of the crashing function.
pub fn explanation(input: &[u8]) {
    let (length, rest) = input.split_first_chunk::<2>().unwrap_or((&[0; 2], input));
    let (sections, code) = rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()));
    let Ok(mut report) = Report::read(&file_of_sections(sections)) else { return };
    report.attribute_frames();
    let registers = report.crashed_thread().and_then(|thread| thread.registers.as_ref());
    let pc = registers.and_then(|registers| registers.pc()).unwrap_or_default();
    for before in [0, 64] {
        let code = Function { start: pc.0.saturating_sub(before), code };
        let explanation = coroner_explain::explain(&report, &code);
        assert!(!explanation.headline.is_empty() && !explanation.headline.contains('\n'), "{:?}", explanation.headline);
        assert_eq!(coroner_explain::explain(&report, &code), explanation, "different explanations of the same report");
    }
}

/// The only known function and its code.
struct Function<'a> {
    start: u64,
    code: &'a [u8],
}

impl CodeSource for Function<'_> {
    fn code(&self, address: Address, length: usize) -> Option<Code> {
        let from = usize::try_from(address.0.checked_sub(self.start)?).ok()?;
        let bytes: Vec<u8> = self.code.get(from..)?.iter().take(length).copied().collect();
        (!bytes.is_empty()).then_some(Code { bytes, is_verified: true })
    }

    fn function(&self, address: Address) -> Option<(Address, Address)> {
        let end = self.start.checked_add(self.code.len() as u64)?;
        (self.start..end).contains(&address.0).then_some((Address(self.start), Address(end)))
    }
}

/// Checks that every stream is inside the minidump (`MINIDUMP_HEADER`, `MINIDUMP_DIRECTORY`).
fn check_streams(dump: &[u8]) {
    let word = |at: usize| {
        let bytes = dump.get(at..at + 4).and_then(|bytes| bytes.first_chunk()).expect("a complete header");
        u32::from_le_bytes(*bytes) as usize
    };
    let (count, directory) = (word(8), word(12));
    for entry in (0..count).map(|number| directory + 12 * number) {
        let (size, offset) = (word(entry + 4), word(entry + 8));
        assert!(offset + size <= dump.len(), "stream {} ends past the end of the file", word(entry));
    }
}

fn file_of_sections(input: &[u8]) -> Vec<u8> {
    let mut file = FILE_PREFIX.to_vec();
    let mut rest = input;
    while let Some(([kind, low, high], behind)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(behind.len());
        let (payload, behind) = behind.split_at(length);
        rest = behind;
        let mut section = vec![0; FRAME_HEADER_LEN];
        section.extend_from_slice(payload);
        let sealed = wire::seal(&mut section, SectionKind(u16::from(*kind)), length);
        file.extend_from_slice(&section[..sealed.expect("the section fits")]);
    }
    file
}

/// Limits of a run state that is small enough for many executions a second.
const SMALL: Limits = Limits {
    facts_bytes: 512,
    small_slots: 4,
    small_bytes: 64,
    large_slots: 3,
    large_bytes: 512,
    breadcrumbs: 4,
    breadcrumb_bytes: 128,
};

fn read_twice(file: &[u8]) {
    let Ok(facts) = RunFacts::read(file) else { return };
    for problem in &facts.problems {
        // Trailing zeros may be missing from the file, and a problem may be in them.
        assert!(problem.offset < 1 << 32, "a problem at an impossible offset: {problem}");
    }
    let json = |facts: &RunFacts| serde_json::to_string(facts).expect("facts can be serialised");
    assert_eq!(
        json(&RunFacts::read(file).expect("it could be read before")),
        json(&facts),
        "different facts from the same input"
    );
}

/// A run state file. The checksum of the header is corrected, so that the other fields are used.
pub fn run_state(input: &[u8]) {
    let mut file = input.to_vec();
    if let Some(header) = file.get_mut(..80) {
        header[..8].copy_from_slice(MAGIC);
        // The checksum covers the eight words after the magic; see docs/report-format.md.
        let check = u64::from(crc32c(0, &header[8..72]));
        header[72..80].copy_from_slice(&check.to_le_bytes());
    }
    read_twice(&file);
}

/// Arbitrary values, keys and breadcrumbs, written by the run state's own writer. Each is `kind,
/// key length, value length, value`.
pub fn run_state_values(input: &[u8]) {
    read_twice(&state_of_values(input));
}

fn state_of_values(input: &[u8]) -> Vec<u8> {
    let words: Vec<AtomicU64> = (0..SMALL.size() / 8).map(|_| AtomicU64::new(0)).collect();
    let state = RunState::create(&words, &SMALL, [1; 16], &ProcessIdentity::default()).expect("large enough");
    let mut rest = input;
    while let Some(([kind, key, length], behind)) = rest.split_first_chunk() {
        let (value, behind) = behind.split_at(usize::from(*length).min(behind.len()));
        rest = behind;
        let text = String::from_utf8_lossy(value);
        let key = text.get(..usize::from(*key % 16)).unwrap_or_default();
        // Values that don't fit are refused.
        match kind % 4 {
            0 => drop(state.set_text(Kind::TAG, key, &text)),
            1 => drop(state.set_cbor(Kind(kind >> 4), key, value)),
            2 => drop(state.remove(Kind(kind >> 4), key)),
            _ => state.breadcrumb(&Breadcrumb {
                time_ns: 1,
                level: Level::INFO,
                kind: key,
                category: "",
                message: &text,
                data: Some(value),
            }),
        }
    }
    state.to_bytes()
}

thread_local! {
    /// Symbols for the image in the corpus, with an inlined call at half of its addresses.
    static SYMBOLS: RefCell<Symbolizer> = RefCell::new(Symbolizer::new(Options {
        search: vec![concat!(env!("CARGO_MANIFEST_DIR"), "/apple_report.sym").into()],
        debug_roots: vec![],
        image_paths: false,
        index_cache: None,
        ..Options::default()
    }));
}

/// An Apple crash report, `.ips` or `.crash`: symbolicated in place, and imported as a Coroner
/// report.
pub fn apple_report(input: &[u8]) {
    if let Ok(report) = coroner_formats::apple_report::read_report(input) {
        exercise_imported(&report, input.len());
        let again = coroner_formats::apple_report::read_report(input).expect("it could be read before");
        assert_eq!(again.to_json(), report.to_json(), "different reports from the same input");
    }
    let Ok(report) = AppleReport::read(input) else { return };
    let named = SYMBOLS.with_borrow_mut(|symbols| report.symbolicate(symbols, &mut |_, _| {}));
    let counted: usize = named.images.iter().map(|image| image.frames).sum();
    assert_eq!(counted, report.frame_count());
    assert!(counted > 0 || named.bytes == input, "a report without frames changed");
    // A symbolicated report parses again.
    let again = AppleReport::read(&named.bytes).expect("a symbolicated report parses");
    assert_eq!(again.images(), report.images());
}

/// A tombstone (protobuf, text, logcat) or an ANR trace.
pub fn tombstone(input: &[u8]) {
    let Ok(report) = coroner_formats::tombstone::read(input) else { return };
    for problem in &report.problems {
        assert!(problem.offset <= input.len() as u64, "a problem past the end of the file: {problem}");
    }
    assert!(coroner_formats::tombstone::detect_form(input).is_some());
    assert_eq!(
        coroner_formats::tombstone::read(input).expect("it could be read before").to_json(),
        report.to_json(),
        "different reports"
    );
    let mut text = String::new();
    let options = TextOptions { threads: ThreadFilter::All, images: true, ..TextOptions::default() };
    report.write_text(&mut text, &options).expect("the text can be written");
}

/// Does everything that happens to an imported report. `length` is the input's.
fn exercise_imported(report: &Report, length: usize) {
    assert!(!report.header.event_id.is_nil(), "the report has no event ID");
    for problem in &report.problems {
        assert!(problem.offset <= length as u64, "a problem past the end of the file: {problem}");
    }
    let mut text = String::new();
    let options = TextOptions { threads: ThreadFilter::All, images: true, ..TextOptions::default() };
    report.write_text(&mut text, &options).expect("the text can be written");
    let json = report.to_json();
    assert_eq!(
        Report::from_json(&json).expect("the report's JSON parses").to_json(),
        json,
        "the report changed when written and read"
    );
}

/// A log with crashes from AddressSanitizer, Go or Rust.
pub fn log(input: &[u8]) {
    let Ok(reports) = coroner_formats::log::read_log(input, None) else { return };
    assert!(!reports.is_empty());
    reports.iter().for_each(|report| exercise_imported(report, input.len()));
}

/// A core dump, compressed or not, a minidump, or an apport report, without the crashed program's
/// files.
pub fn dump(input: &[u8]) {
    let read = || SYMBOLS.with_borrow_mut(|symbols| coroner_formats::dump::read(input, None, symbols));
    let Ok(report) = read() else { return };
    let is_packed = matches!(Form::detect(input), Some(Form::Compressed | Form::Apport));
    exercise_imported(&report, if is_packed { usize::MAX } else { input.len() });
    assert_eq!(
        read().expect("it could be read before").to_json(),
        report.to_json(),
        "different reports from the same input"
    );
}

/// A core dump read from a pipe.
pub fn core_stream(input: &[u8]) {
    let read =
        || SYMBOLS.with_borrow_mut(|symbols| coroner_formats::dump::read_core_stream(input, None, None, symbols));
    let Ok(report) = read() else { return };
    exercise_imported(&report, input.len());
    assert_eq!(
        read().expect("it could be read before").to_json(),
        report.to_json(),
        "different reports from the same input"
    );
}

/// A Java stack trace.
pub fn java_stack_trace(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let frames: usize = coroner_formats::tombstone::exceptions_of_stack_trace(&text, 1)
        .iter()
        .map(|exception| exception.frames.len())
        .sum();
    assert!(frames <= 64 * 10_000, "{frames} frames");
}
