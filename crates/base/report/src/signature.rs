//! Crash signatures, which stay the same over builds, machines and runs, and their similarity.
//!
//! See the table in `docs/grouping.md` for the rules.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::model::{Crash, CrashFlag, Frame, InApp, InAppRules, Report};
use crate::wire::Monitor;

/// Maximum number of frames in a signature.
pub const MAX_FRAMES: usize = 8;

/// Maximum number of frames in an id of places ([`Signature::id_of_places`]).
const MAX_PLACES: usize = 64;

/// Maximum number of frames examined: enough to have some left after folding a deep recursion.
const MAX_FOLDED: usize = 4096;

/// Maximum number of frames in one round of a recursion.
const MAX_ROUND: usize = 8;

/// Minimum number of rounds in a recursion that fills the stack.
const LEAST_ROUNDS: usize = 3;

/// The kind of a stack overflow.
const STACK_OVERFLOW: &str = "stack overflow";

/// Functions that allocate, copy or compare memory, or only pass on a failure.
///
/// Their callers are more interesting.
const CARRIERS: [&str; 38] = [
    "malloc",
    "calloc",
    "realloc",
    "free",
    "cfree",
    "posix_memalign",
    "aligned_alloc",
    "memalign",
    "malloc_printerr",
    "malloc_consolidate",
    "_int_malloc",
    "_int_free",
    "_int_realloc",
    "unlink_chunk",
    "sysmalloc",
    "tcache_get",
    "operator new",
    "operator new[]",
    "operator delete",
    "operator delete[]",
    "memcpy",
    "memmove",
    "memset",
    "memcmp",
    "memchr",
    "bcmp",
    "strlen",
    "strcmp",
    "strncmp",
    "strcpy",
    "strncpy",
    "strcat",
    "abort",
    "raise",
    "__libc_message",
    "__assert_fail",
    "__assert_fail_base",
    "__stack_chk_fail",
];

/// Name prefixes of such functions, most of them of allocators.
const CARRIER_PREFIXES: [&str; 12] = [
    "je_",
    "mi_",
    "tc_",
    "tcmalloc::",
    "rpmalloc",
    "szone_",
    "tiny_",
    "nanov2_",
    "malloc_zone_",
    "__memcpy",
    "__memmove",
    "__str",
];

/// Beginnings of the file names of C libraries and dynamic linkers, in lower case.
const C_LIBRARIES: [&str; 17] = [
    "[vdso]",
    "kernel32.",
    "kernelbase.",
    "ld-",
    "ld.so",
    "libc.",
    "libc-",
    "libdyld.",
    "libpthread.",
    "libpthread-",
    "libsystem_",
    "linker64",
    "linux-vdso",
    "msvcrt.",
    "ntdll.",
    "ucrtbase.",
    "win32u.",
];

/// A crash signature: its kind and its frames.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Signature {
    /// The kind of crash, in words that are the same on all systems.
    ///
    /// Such as `bad access`, `abort`, `trap`, or the type of an exception.
    pub kind: String,
    /// The functions, innermost first, normalised ([`normalise`]); at most [`MAX_FRAMES`].
    pub frames: Vec<String>,
}

impl Signature {
    /// Computes the signature of `report` with the default in-app rules.
    ///
    /// The frames are the app's own in the stack that the report is about (that of the throw, if
    /// there is one). If none is the app's own, they are the named functions that don't belong to a
    /// runtime; if there are none of these either, images with offsets. A report without a stack
    /// has the program and the message instead, without its numbers.
    pub fn from_report(report: &Report) -> Signature {
        Self::with_rules(report, &InAppRules::default())
    }

    /// Computes the signature of `report` with the app's in-app rules.
    pub fn with_rules(report: &Report, rules: &InAppRules) -> Signature {
        let in_app = InApp::new(rules, report);
        let stack = stack(report);
        let mut frames = own_frames(stack, &in_app);
        if frames.is_empty() {
            frames = named_frames(stack, &in_app);
        }
        if frames.is_empty() {
            let placed = stack.iter().filter_map(place).take(MAX_FRAMES);
            frames = placed.collect();
        }
        if frames.is_empty() {
            frames = described(report);
        }
        Self::folded(report, frames)
    }

    /// Returns the kind of crash, and image and offset of the innermost frame outside the C
    /// library, if the stack has no frame of the app and that one has no name.
    ///
    /// Without it, a server groups such reports by frames that all have in common, such as
    /// `start_thread`.
    pub fn unnamed_place(report: &Report, rules: &InAppRules) -> Option<[String; 2]> {
        let in_app = InApp::new(rules, report);
        let stack = stack(report);
        if stack.iter().flat_map(|frame| in_app.functions(frame)).any(|function| function.in_app) {
            return None;
        }
        let is_c_library = |module: &str| {
            let file = module.rsplit(['/', '\\']).next().unwrap_or(module).to_ascii_lowercase();
            C_LIBRARIES.iter().any(|library| file.starts_with(library))
        };
        let frame = stack.iter().find(|frame| frame.module.as_deref().is_some_and(|module| !is_c_library(module)))?;
        let is_named = in_app.functions(frame).any(|function| function.name.is_some());
        let kind = kind(report, report.crash.as_ref()?);
        place(frame).filter(|_| !is_named).map(|place| [kind, place])
    }

    fn folded(report: &Report, frames: Vec<String>) -> Signature {
        let mut signature = Self::whole(report, frames);
        signature.frames.truncate(MAX_FRAMES);
        signature
    }

    /// Returns the signature with all frames, recursions folded.
    fn whole(report: &Report, frames: Vec<String>) -> Signature {
        let kind = report.crash.as_ref().map_or_else(|| "unknown".to_owned(), |crash| kind(report, crash));
        let round = if kind == STACK_OVERFLOW { round(&frames) } else { None };
        Signature { kind, frames: round.unwrap_or_else(|| fold_recursion(frames)) }
    }

    /// Returns the id of the place where `report` crashed.
    ///
    /// The id is the same for crashes at the same addresses of the same builds, with or without
    /// names. It is computed from the kind and the app's own frames, each as its image's build id
    /// and the offset in it. `None` if the stack has no such frame.
    pub fn id_of_places(report: &Report) -> Option<String> {
        let rules = InAppRules::default();
        let in_app = InApp::new(&rules, report);
        let builds: HashMap<&str, &[u8]> =
            report.images.iter().map(|image| (image.path.as_str(), image.build_id.0.as_slice())).collect();
        let frames = stack(report).iter().filter(|frame| in_app.is(frame.module.as_deref(), None, None));
        let places = frames.filter_map(|frame| {
            let build = builds.get(frame.module.as_deref()?).filter(|build| !build.is_empty())?;
            Some(format!("{build:02x?} + {}", frame.module_offset?))
        });
        let places: Vec<String> = places.take(MAX_FOLDED).collect();
        if places.is_empty() {
            return None;
        }
        // A language's runtime may take more frames than a signature has: without names, they
        // can't be left out.
        let Signature { kind, frames } = Self::whole(report, places);
        Some(Signature { kind, frames: frames.into_iter().take(MAX_PLACES).collect() }.id())
    }

    /// Whether one of the functions has no name.
    pub fn has_places(&self) -> bool {
        self.frames.iter().any(|frame| frame.contains(" + 0x"))
    }

    /// Returns one round of the recursion that filled the stack.
    ///
    /// The round is the same whichever of its functions used the last page. `None` if the crash is
    /// not a stack overflow, if none of the app's functions recurs, or if one of the functions has
    /// no name.
    pub fn recursion(report: &Report, rules: &InAppRules) -> Option<Vec<String>> {
        report.crash.as_ref().filter(|crash| crash.has(CrashFlag::StackOverflow))?;
        let stack = report.crashed_thread()?.frames.as_slice();
        let round = round(&own_frames(stack, &InApp::new(rules, report)))?;
        let is_named = stack.iter().filter_map(place).all(|place| !round.contains(&place));
        is_named.then_some(round)
    }

    /// Returns 16 hexadecimal digits that are the same for equal signatures.
    ///
    /// They are the 64-bit FNV-1a hash of kind and frames.
    pub fn id(&self) -> String {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for part in [&self.kind].into_iter().chain(&self.frames) {
            for byte in part.bytes().chain([0]) {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        format!("{hash:016x}")
    }
}

/// Formats like `bad access | innermost | its caller | …`.
impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)?;
        self.frames.iter().try_for_each(|frame| write!(f, " | {frame}"))
    }
}

/// Returns the stack that the report is about: that of the throw, if there is one.
fn stack(report: &Report) -> &[Frame] {
    match report.exceptions.first().map(|exception| exception.frames.as_slice()) {
        None | Some([]) => report.crashed_frames(),
        Some(thrown) => thrown,
    }
}

/// Describes a crash without a stack: its program, and the place or the message of its exception.
fn described(report: &Report) -> Vec<String> {
    let exception = report.exceptions.first();
    let location = exception.and_then(|exception| exception.location.as_deref());
    // Lines and columns differ between builds.
    let file = location.map(|location| location.trim_end_matches(|end: char| end.is_ascii_digit() || end == ':'));
    let message = exception
        .and_then(|exception| exception.message.as_deref())
        .or(report.crash.as_ref().and_then(|crash| crash.message.as_deref()));
    let words = message.map(|message| {
        let first = message.lines().next().unwrap_or_default();
        first.split(|digit: char| digit.is_ascii_digit()).filter(|part| !part.is_empty()).collect::<Vec<_>>().join("#")
    });
    let program = Some(report.header.process_name.as_str()).filter(|name| !name.is_empty());
    let parts = [words.as_deref(), file, program];
    parts.into_iter().flatten().map(ToOwned::to_owned).collect()
}

fn kind(report: &Report, crash: &Crash) -> String {
    if crash.has(CrashFlag::StackOverflow) {
        return STACK_OVERFLOW.to_owned();
    }
    if crash.monitor == Monitor::HANG {
        return "hang".to_owned();
    }
    if let Some(exception) = report.exceptions.first() {
        return without_arguments(&exception.kind()).into_owned();
    }
    let signal = crash.signal.as_ref().and_then(|signal| signal.name);
    let mach = crash.mach.as_ref().and_then(|mach| mach.name);
    match mach.or(signal) {
        Some("SIGSEGV" | "SIGBUS" | "EXC_BAD_ACCESS" | "EXC_GUARD") => "bad access".to_owned(),
        Some("SIGABRT" | "EXC_CRASH") => "abort".to_owned(),
        Some("SIGILL" | "SIGTRAP" | "EXC_BAD_INSTRUCTION" | "EXC_BREAKPOINT") => "trap".to_owned(),
        Some("SIGFPE" | "EXC_ARITHMETIC") => "arithmetic".to_owned(),
        Some("SIGSYS") => "system call".to_owned(),
        Some(other) => other.to_owned(),
        None => crash.kind(),
    }
}

fn own_frames(stack: &[Frame], in_app: &InApp<'_>) -> Vec<String> {
    let functions = stack.iter().flat_map(|frame| in_app.functions(frame).map(move |function| (frame, function)));
    let own = functions.filter(|(_, function)| function.in_app);
    let labels = own.filter_map(|(frame, function)| match function.name.filter(|_| !is_giant(frame)) {
        Some(name) => Some(normalise(name)).filter(|name| !is_carrier(name)),
        None if function.is_inlined => None,
        None => place(frame),
    });
    labels.take(MAX_FOLDED).collect()
}

/// Whether a frame's symbol stands for much of its image, such as all code of a Dart program.
fn is_giant(frame: &Frame) -> bool {
    const GIANT: u64 = 1 << 20;
    if frame.function.as_deref().is_some_and(|name| name.starts_with("_kDart")) {
        return true;
    }
    let start = frame.symbol_address.filter(|_| frame.inlined.is_empty());
    start.is_some_and(|start| frame.address.0.wrapping_sub(start.0) >= GIANT)
}

fn named_frames(stack: &[Frame], in_app: &InApp<'_>) -> Vec<String> {
    let functions = stack.iter().flat_map(|frame| in_app.functions(frame));
    let named = functions.filter_map(|function| {
        let name = function.name.filter(|name| !in_app.is_runtime(Some(name), function.file))?;
        Some(normalise(name)).filter(|name| !is_carrier(name))
    });
    named.take(MAX_FOLDED).collect()
}

/// Returns the label of an unnamed frame: its image and the offset in it, which a build keeps.
fn place(frame: &Frame) -> Option<String> {
    let module = frame.module.as_deref()?;
    let file = module.rsplit('/').next().unwrap_or(module);
    Some(format!("{file} + {}", frame.module_offset?))
}

fn is_carrier(name: &str) -> bool {
    // Avoids a string searcher, which takes longer than everything else here.
    let mut bare = name;
    for prefix in ["__libc_", "__GI_"] {
        while let Some(rest) = bare.strip_prefix(prefix) {
            bare = rest;
        }
    }
    CARRIERS.contains(&name)
        || CARRIERS.contains(&bare)
        || CARRIER_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns one round of the recursion that filled the stack, rotated to its lexicographic minimum.
///
/// It is chance which of its functions used the last page, and what that function had called there.
fn round(frames: &[String]) -> Option<Vec<String>> {
    (0..frames.len()).find_map(|first| {
        (1..=MAX_ROUND).find_map(|length| {
            let rounds = frames.get(first..first + LEAST_ROUNDS * length)?;
            let (round, others) = rounds.split_at(length);
            let is_one = others.chunks(length).all(|other| other == round);
            is_one.then(|| (0..length).map(|by| [&round[by..], &round[..by]].concat()).min())?
        })
    })
}

/// Reduces each recursion to one round.
fn fold_recursion(frames: Vec<String>) -> Vec<String> {
    let mut folded: Vec<String> = Vec::new();
    for frame in frames {
        folded.push(frame);
        for round in 1..=MAX_ROUND.min(folded.len() / 2) {
            let (first, last) = (folded.len() - 2 * round, folded.len() - round);
            if folded[first..last] == folded[last..] {
                folded.truncate(last);
                break;
            }
        }
    }
    folded
}

/// Returns a function's name in the form that stays the same over builds.
///
/// Removes the arguments of templates and generics, the types of its arguments, the hash that
/// Rust's compiler appends, the numbers of closures and lambdas, and the suffixes of the parts into
/// which a compiler split it.
///
/// | in the report | in the signature |
/// |---|---|
/// | `paint::Brush<u8>::fill::h0123456789abcdef` | `paint::Brush::fill` |
/// | `void draw<int>(std::vector<int> const&)` | `draw` |
/// | `paint::main::{{closure}}`, `paint::main::{closure#0}` | `paint::main::{closure}` |
/// | `load.cold`, `load.part.0`, `load [clone .isra.0]`, `load.llvm.123` | `load` |
/// | `<paint::Brush as core::fmt::Display>::fmt` | `paint::Brush::fmt` |
pub fn normalise(function: &str) -> String {
    // Most names contain nothing to remove.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':';
    if function.bytes().all(is_plain) {
        return without_hash(function).to_owned();
    }
    let function = function.split(" [clone ").next().unwrap_or(function).trim();
    // Objective-C: `-[Cart pay:]`.
    if function.starts_with("-[") || function.starts_with("+[") {
        return function.to_owned();
    }
    let own = match function.strip_prefix('<').and_then(|inside| closing(inside).map(|end| inside.split_at(end))) {
        Some((inside, rest)) => {
            let implementor = split_as(inside);
            Cow::Owned(format!("{}{}", without_arguments(implementor), &rest[1..]))
        }
        None => Cow::Borrowed(function),
    };
    let own = own.replace("(anonymous namespace)", "{anonymous}").replace("{{closure}}", "{closure}");
    let own = strip_numbers(&own);
    let name = without_arguments(&own);
    let mut name = without_return_type(&name);
    for suffix in [".cold", ".part.", ".isra.", ".constprop.", ".llvm.", ".lto_priv.", "@@", "@"] {
        if let Some(at) = name.find(suffix).filter(|at| *at > 0) {
            name = &name[..at];
        }
    }
    without_hash(name).trim().to_owned()
}

fn without_hash(name: &str) -> &str {
    const HASH: usize = "::h0123456789abcdef".len();
    let split = name.len().checked_sub(HASH).and_then(|at| name.split_at_checked(at));
    let is_hash =
        |end: &str| end.strip_prefix("::h").is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    split.filter(|(_, end)| is_hash(end)).map_or(name, |(path, _)| path)
}

/// Returns the index at which the angle bracket before `inside` closes.
fn closing(inside: &str) -> Option<usize> {
    let mut depth = 1_usize;
    let mut before = ' ';
    for (at, character) in inside.char_indices() {
        match character {
            '<' => depth += 1,
            '>' if before != '-' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at);
        }
        before = character;
    }
    None
}

/// Returns `T` from `T as Trait`, if the ` as ` is not inside brackets.
fn split_as(inside: &str) -> &str {
    let mut depth = 0_usize;
    for (at, character) in inside.char_indices() {
        match character {
            '<' | '(' | '[' => depth += 1,
            '>' | ')' | ']' => depth = depth.saturating_sub(1),
            ' ' if depth == 0 && inside[at..].starts_with(" as ") => return &inside[..at],
            _ => {}
        }
    }
    inside
}

/// Removes angle brackets and parentheses with their contents.
fn without_arguments(name: &str) -> Cow<'_, str> {
    if !name.contains(['<', '(']) {
        return Cow::Borrowed(name);
    }
    let mut bare = String::with_capacity(name.len());
    let mut depth = 0_usize;
    let mut characters = name.char_indices().peekable();
    while let Some((at, character)) = characters.next() {
        let is_operator =
            depth == 0 && (bare.ends_with("operator") || bare.ends_with("operator<") || bare.ends_with("operator>"));
        match character {
            '<' | '>' if is_operator => bare.push(character),
            // `operator()(int)`
            '(' if is_operator && name[at..].starts_with("()") => {
                bare.push_str("()");
                characters.next();
            }
            '<' | '(' => depth += 1,
            '>' if name[..at].ends_with('-') && depth == 0 => bare.push(character),
            '>' if name[..at].ends_with('-') => {}
            '>' | ')' => {
                depth = depth.saturating_sub(1);
                // The arguments may be followed by `const` or `&`.
                if depth == 0 && character == ')' && !name[at + 1..].starts_with("::") {
                    break;
                }
            }
            _ if depth == 0 => bare.push(character),
            _ => {}
        }
    }
    let bare = bare.replace("::::", "::");
    Cow::Owned(bare.trim_end_matches("::").to_owned())
}

fn without_return_type(name: &str) -> &str {
    if name.contains("operator") {
        return name;
    }
    name.rsplit(' ').find(|part| !part.is_empty()).unwrap_or(name)
}

/// Removes the numbers of closures (`{closure#0}`), lambdas (`{lambda()#1}`) and shims.
fn strip_numbers(name: &str) -> String {
    let mut stripped = String::with_capacity(name.len());
    let mut in_braces = false;
    let mut skipping = false;
    for character in name.chars() {
        match character {
            '{' => in_braces = true,
            '}' => (in_braces, skipping) = (false, false),
            '#' | '(' if in_braces => skipping = true,
            _ => {}
        }
        if !skipping {
            stripped.push(character);
        }
    }
    stripped
}

/// Frequency of each function in a set of signatures: a frequent one has little weight.
#[derive(Clone, Debug, Default)]
pub struct Rarity {
    signatures: usize,
    containing: HashMap<String, usize>,
}

impl Rarity {
    /// Counts the functions in a set of signatures.
    pub fn from_signatures<'s>(signatures: impl IntoIterator<Item = &'s Signature>) -> Rarity {
        let mut rarity = Rarity::default();
        for signature in signatures {
            rarity.signatures += 1;
            for frame in signature.frames.iter().collect::<HashSet<_>>() {
                *rarity.containing.entry(frame.clone()).or_default() += 1;
            }
        }
        rarity
    }

    /// Returns the inverse document frequency divided by its maximum, from 0.1 (in all) to 1 (in
    /// one).
    fn weight(&self, frame: &str) -> f64 {
        let all = self.signatures.max(2) as f64;
        let containing = self.containing.get(frame).copied().unwrap_or(1).max(1) as f64;
        (0.1 + 0.9 * (all / containing).ln() / all.ln()).clamp(0.1, 1.0)
    }
}

/// Returns the similarity of two signatures, from 0 to 1.
///
/// This is the weight that the best alignment of their stacks has in common, divided by the weight
/// of all frames in either. A frame weighs more the nearer it is to the crash and the rarer it is,
/// as in TraceSim (Vasiliev and others, 2020). Signatures of different kinds have similarity 0.
pub fn similarity(a: &Signature, b: &Signature, rarity: &Rarity) -> f64 {
    // Crashes about which nothing is known are not the same.
    if a.kind != b.kind || a.frames.is_empty() || b.frames.is_empty() {
        return 0.0;
    }
    let weights = |signature: &Signature| -> Vec<f64> {
        let places = signature.frames.iter().enumerate();
        places.map(|(place, frame)| rarity.weight(frame) / ((place + 1) as f64).powf(0.8)).collect()
    };
    let (of_a, of_b) = (weights(a), weights(b));
    // Row by row: the minimum weight that an alignment of the first frames leaves unmatched.
    let mut above: Vec<f64> = std::iter::once(0.0).chain(sums(&of_b)).collect();
    for (i, frame) in a.frames.iter().enumerate() {
        let mut row = vec![above[0] + of_a[i]];
        for (j, other) in b.frames.iter().enumerate() {
            let apart = (above[j + 1] + of_a[i]).min(row[j] + of_b[j]);
            let together = above[j] + (of_a[i] - of_b[j]).abs();
            row.push(if frame == other { apart.min(together) } else { apart });
        }
        above = row;
    }
    let all = of_a.iter().sum::<f64>() + of_b.iter().sum::<f64>();
    (1.0 - above[b.frames.len()] / all).clamp(0.0, 1.0)
}

fn sums(weights: &[f64]) -> impl Iterator<Item = f64> {
    weights.iter().scan(0.0, |sum, weight| {
        *sum += weight;
        Some(*sum)
    })
}
