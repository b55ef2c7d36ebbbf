//! The rules for crash-time code: the checked-in lists, and the kinds of offences.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeSet;

use anyhow::{Context, bail};

use super::program::Machine;
use super::size;

/// The reason for a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Offence {
    /// A panic, or code that handles one.
    Panic,
    /// `core::fmt`: large, recursive, and full of panics.
    Formatting,
    /// Memory allocation or deallocation.
    Allocator,
    /// A lock, which the crashed thread may hold.
    Lock,
    /// A thread-local variable whose first use allocates.
    LazyThreadLocal,
    /// Rust's standard library.
    StandardLibrary,
    /// A function of another library that is not listed.
    Import,
    /// A function of a crate that is not for crash time.
    ForeignFunction,
    /// A call through a pointer that is not listed: its target can't be checked.
    UnknownCall,
    /// A system call that is not listed, or whose number is not in the code.
    SystemCall,
    /// Code without a symbol.
    Nameless,
    /// Imports are bound at the first call by the dynamic linker, which takes locks.
    LazyBinding,
    /// A loop that waits for another thread without a bound.
    Spin,
    /// A cycle of calls without a listed bound.
    Recursion,
    /// A frame of unknown size.
    UnknownFrame,
    /// A function that is entered with its own stack, whose size is not listed.
    UnknownStack,
    /// The deepest path needs more stack than there is.
    StackTooDeep,
}

impl Offence {
    /// Describes the offence.
    pub(super) fn describe(self) -> &'static str {
        match self {
            Offence::Panic => "panics",
            Offence::Formatting => "formats text",
            Offence::Allocator => "allocates or frees memory",
            Offence::Lock => "takes a lock",
            Offence::LazyThreadLocal => "uses a thread-local that is made on first use",
            Offence::StandardLibrary => "enters the standard library",
            Offence::Import => "calls a library function that is not on the list",
            Offence::ForeignFunction => "enters a crate that is not a crash-time one",
            Offence::UnknownCall => "calls through a pointer that is not on the list",
            Offence::SystemCall => "makes a system call that is not on the list",
            Offence::Nameless => "enters code without a name",
            Offence::LazyBinding => "binds imports lazily",
            Offence::Spin => "waits for another thread in a loop without a bound that is on the list",
            Offence::Recursion => "calls itself without a bound that is on the list",
            Offence::UnknownFrame => "changes its stack pointer by an amount that can't be known",
            Offence::UnknownStack => "gets a stack whose size is not on the list",
            Offence::StackTooDeep => "needs more stack than there is",
        }
    }
}

/// Parts of demangled names that are an offence in any crate. The first match decides.
const MARKS: &[(&str, Offence)] = &[
    ("core::panicking::", Offence::Panic),
    ("core::option::unwrap_failed", Offence::Panic),
    ("core::option::expect_failed", Offence::Panic),
    ("core::result::unwrap_failed", Offence::Panic),
    ("core::cell::panic_", Offence::Panic),
    ("core::slice::index::slice_", Offence::Panic),
    ("core::slice::copy_from_slice_impl::len_mismatch_fail", Offence::Panic),
    ("len_mismatch_fail", Offence::Panic),
    ("core::str::slice_error_fail", Offence::Panic),
    ("core::alloc::layout::", Offence::Allocator),
    ("rust_begin_unwind", Offence::Panic),
    ("rust_panic", Offence::Panic),
    ("rust_eh_personality", Offence::Panic),
    ("std::panicking::", Offence::Panic),
    ("_Unwind_", Offence::Panic),
    ("core::fmt::", Offence::Formatting),
    ("alloc::fmt::", Offence::Formatting),
    ("__rust_alloc", Offence::Allocator),
    ("__rust_dealloc", Offence::Allocator),
    ("__rust_realloc", Offence::Allocator),
    ("__rust_no_alloc", Offence::Allocator),
    ("__rdl_", Offence::Allocator),
    ("__rg_", Offence::Allocator),
    ("alloc::alloc::", Offence::Allocator),
    ("alloc::raw_vec::", Offence::Allocator),
    ("std::alloc::", Offence::Allocator),
    ("std::thread::local", Offence::LazyThreadLocal),
    ("std::sys::thread_local", Offence::LazyThreadLocal),
    ("std::sync::", Offence::Lock),
    ("std::sys::sync::", Offence::Lock),
    ("alloc::", Offence::Allocator),
    ("std::", Offence::StandardLibrary),
];

/// Names of C functions that are an offence.
const IMPORT_MARKS: &[(&str, Offence)] = &[
    ("malloc", Offence::Allocator),
    ("calloc", Offence::Allocator),
    ("realloc", Offence::Allocator),
    ("free", Offence::Allocator),
    ("aligned_alloc", Offence::Allocator),
    ("posix_memalign", Offence::Allocator),
    ("__tls_get_addr", Offence::LazyThreadLocal),
    ("___tls_get_addr", Offence::LazyThreadLocal),
    ("_tlv_bootstrap", Offence::LazyThreadLocal),
    ("__cxa_thread_atexit_impl", Offence::LazyThreadLocal),
    ("abort", Offence::Panic),
];

/// Prefixes of names of C functions that are an offence.
const IMPORT_PREFIXES: &[(&str, Offence)] = &[
    ("_Unwind_", Offence::Panic),
    ("pthread_mutex_", Offence::Lock),
    ("pthread_rwlock_", Offence::Lock),
    ("pthread_cond_", Offence::Lock),
    ("pthread_once", Offence::Lock),
    ("sem_", Offence::Lock),
    ("flock", Offence::Lock),
    ("pthread_getspecific", Offence::LazyThreadLocal),
    ("pthread_setspecific", Offence::LazyThreadLocal),
];

#[derive(Clone, Debug)]
struct Allowed {
    kind: Kind,
    name: String,
    reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Crate,
    Function,
    Import,
    Indirect,
    Landing,
    /// The numbers on x86_64 and arm64, if the machine has the call.
    SystemCall(Option<u32>, Option<u32>),
    /// The number of the argument that it calls, from 0.
    Through(usize),
    /// Like `Through`, but on another stack.
    Switch(usize),
    Spin,
    /// Maximum number of active calls.
    Recursion(i64),
    /// Bytes of the stack that it is entered with.
    Stack(i64),
    /// Bytes that any import may use.
    ImportStack(i64),
}

/// The parsed lists.
#[derive(Debug)]
pub(super) struct Rules {
    allowed: Vec<Allowed>,
    used: RefCell<BTreeSet<usize>>,
}

impl Rules {
    /// Parses the allow-list; a comment at its top describes the format.
    ///
    /// # Errors
    /// An error with the line and the reason if a line is invalid.
    pub(super) fn parse(text: &str) -> anyhow::Result<Rules> {
        let mut allowed = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let at = || format!("line {} of the allow-list: {line:?}", index + 1);
            let (what, reason) = line.split_once(" -- ").with_context(|| format!("{}: no reason is given", at()))?;
            let what = what.trim();
            let (kind, name) = what.split_once(char::is_whitespace).with_context(|| format!("{}: no name", at()))?;
            let mut name = name.trim().to_owned();
            let mut last_word = || -> anyhow::Result<String> {
                let (rest, last) =
                    name.rsplit_once(char::is_whitespace).with_context(|| format!("{}: no number", at()))?;
                let last = last.to_owned();
                name = rest.trim().to_owned();
                Ok(last)
            };
            let kind = match kind {
                "crate" => Kind::Crate,
                "function" => Kind::Function,
                "import" => Kind::Import,
                "indirect" => Kind::Indirect,
                "landing" => Kind::Landing,
                "spin" => Kind::Spin,
                "through" | "switch" => {
                    let number: usize = last_word()?.parse().with_context(at)?;
                    let argument =
                        number.checked_sub(1).with_context(|| format!("{}: arguments count from 1", at()))?;
                    if kind == "switch" { Kind::Switch(argument) } else { Kind::Through(argument) }
                }
                "recursion" => Kind::Recursion(size::parse(&last_word()?).with_context(at)?),
                "stack" => Kind::Stack(size::parse(&last_word()?).with_context(at)?),
                "import-stack" => Kind::ImportStack(size::parse(&name).with_context(at)?),
                "syscall" => {
                    let words: Vec<&str> = name.split_whitespace().collect();
                    let number = |word: &str| match word {
                        "-" => Ok(None),
                        word => word.parse().map(Some).with_context(|| format!("{}: no number: {word:?}", at())),
                    };
                    let [call, x86_64, aarch64] = words[..] else {
                        bail!("{}: a system call has a name and two numbers", at())
                    };
                    let kind = Kind::SystemCall(number(x86_64)?, number(aarch64)?);
                    name = call.to_owned();
                    kind
                }
                other => bail!("{}: no kind {other:?}", at()),
            };
            allowed.push(Allowed { kind, name, reason: reason.trim().to_owned() });
        }
        Ok(Rules { allowed, used: RefCell::default() })
    }

    /// Returns the line that allows something, if there is one.
    fn find(&self, matches: impl Fn(&Allowed) -> bool) -> Option<&Allowed> {
        let index = self.allowed.iter().position(matches)?;
        self.used.borrow_mut().insert(index);
        self.allowed.get(index)
    }

    /// Whether a function is called only by landing pads, while a panic unwinds.
    ///
    /// The function may be in the program or another library. Such functions are not followed. Code
    /// that starts a panic is rejected everywhere, so they never run.
    pub(super) fn is_landing(&self, name: &str) -> bool {
        let name = name.split('@').next().unwrap_or(name);
        self.find(|allowed| allowed.kind == Kind::Landing && allowed.name == name).is_some()
    }

    /// Checks whether a function of the program may be reached.
    pub(super) fn function(&self, name: &str) -> Result<(), Offence> {
        if self.find(|allowed| allowed.kind == Kind::Function && is_path(name, &allowed.name)).is_some() {
            return Ok(());
        }
        // Functions extracted by LLVM's machine outliner from any crates have no crate name
        // (MachineOutliner.cpp). They are followed like any other function.
        if name.strip_prefix("OUTLINED_FUNCTION_").is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit())) {
            return Ok(());
        }
        // A mark matches only at the start of a path: `alloc::` doesn't match in
        // `coroner::alloc::`.
        let at_path_start = |mark: &str| {
            name.match_indices(mark)
                .any(|(at, _)| at == 0 || !name[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':'))
        };
        let anywhere = ["rust_begin_unwind", "len_mismatch_fail", "__rust_alloc", "__rust_dealloc", "__rust_realloc"];
        for (mark, offence) in MARKS {
            if at_path_start(mark) || (anywhere.contains(mark) && name.contains(mark)) {
                return Err(*offence);
            }
        }
        let home = crate_of(name);
        match self.find(|allowed| allowed.kind == Kind::Crate && allowed.name == home) {
            Some(_) => Ok(()),
            None => self.import(name).map_err(|offence| match offence {
                // A linked C function, such as libgcc's, which has its own name.
                Offence::Import => Offence::ForeignFunction,
                other => other,
            }),
        }
    }

    /// Checks whether a function of another library may be called.
    pub(super) fn import(&self, name: &str) -> Result<(), Offence> {
        let name = name.split('@').next().unwrap_or(name);
        if self.find(|allowed| allowed.kind == Kind::Import && allowed.name == name).is_some() {
            return Ok(());
        }
        let exact = IMPORT_MARKS.iter().find(|(mark, _)| name == *mark);
        let prefix = IMPORT_PREFIXES.iter().find(|(mark, _)| name.starts_with(mark));
        Err(exact.or(prefix).map_or(Offence::Import, |(_, offence)| *offence))
    }

    /// Returns the reason why a function may call through pointers.
    pub(super) fn indirect(&self, name: &str) -> Option<&str> {
        self.find(|allowed| allowed.kind == Kind::Indirect && is_path(name, &allowed.name))
            .map(|allowed| allowed.reason.as_str())
    }

    /// Returns the argument that a function calls, and whether on another stack.
    pub(super) fn through(&self, name: &str) -> Option<(usize, bool)> {
        let is = |allowed: &Allowed| {
            matches!(allowed.kind, Kind::Through(_) | Kind::Switch(_)) && is_path(name, &allowed.name)
        };
        match self.find(is)?.kind {
            Kind::Through(argument) => Some((argument, false)),
            Kind::Switch(argument) => Some((argument, true)),
            _ => None,
        }
    }

    /// Whether a function's loops have a bound that the machine code doesn't show.
    pub(super) fn spin(&self, name: &str) -> bool {
        self.find(|allowed| allowed.kind == Kind::Spin && is_path(name, &allowed.name)).is_some()
    }

    /// Returns the maximum number of active calls of a function.
    pub(super) fn recursion(&self, name: &str) -> Option<i64> {
        let is = |allowed: &Allowed| matches!(allowed.kind, Kind::Recursion(_)) && is_path(name, &allowed.name);
        match self.find(is)?.kind {
            Kind::Recursion(times) => Some(times),
            _ => None,
        }
    }

    /// Returns the size in bytes and the description of a function's own stack.
    pub(super) fn stack(&self, name: &str) -> Option<(i64, &str)> {
        let is = |allowed: &Allowed| matches!(allowed.kind, Kind::Stack(_)) && is_path(name, &allowed.name);
        let allowed = self.find(is)?;
        match allowed.kind {
            Kind::Stack(bytes) => Some((bytes, &allowed.reason)),
            _ => None,
        }
    }

    /// Returns the maximum bytes of stack that a function of another library may use.
    pub(super) fn import_stack(&self) -> i64 {
        let bytes = |allowed: &Allowed| match allowed.kind {
            Kind::ImportStack(bytes) => Some(bytes),
            _ => None,
        };
        self.allowed.iter().filter_map(bytes).max().unwrap_or_default()
    }

    /// Returns the name of an allowed system call.
    pub(super) fn system_call(&self, machine: Machine, number: u32) -> Option<&str> {
        let is = |allowed: &Allowed| match allowed.kind {
            Kind::SystemCall(x86_64, aarch64) => {
                Some(number) == if machine == Machine::X86_64 { x86_64 } else { aarch64 }
            }
            _ => false,
        };
        self.find(is).map(|allowed| allowed.name.as_str())
    }

    /// Returns the unused lines of the list.
    pub(super) fn unused(&self) -> Vec<&str> {
        let used = self.used.borrow();
        let idle = |(index, allowed): (usize, &'_ Allowed)| {
            let is_general = matches!(allowed.kind, Kind::Crate | Kind::ImportStack(_));
            (!used.contains(&index) && !is_general).then_some(index)
        };
        self.allowed.iter().enumerate().filter_map(idle).map(|index| self.allowed[index].name.as_str()).collect()
    }
}

/// Whether `name` is the path `wanted`, or ends in it at a path boundary.
///
/// A `*` at the end of `wanted` matches any further characters of a name without a path.
pub(super) fn is_path(name: &str, wanted: &str) -> bool {
    if let Some(start) = wanted.strip_suffix('*') {
        return name.starts_with(start) && !name.contains("::");
    }
    let name = without_impl(name);
    name.strip_suffix(wanted).is_some_and(|rest| rest.is_empty() || rest.ends_with("::") || rest.ends_with('<'))
}

/// Returns a method's name without the brackets around its type, which depend on the mangling.
///
/// They are `a::B::f` (legacy), `<a::B>::f` (v0) and `a::c::<impl a::B>::f` (legacy, if the block
/// is in another module).
fn without_impl(name: &str) -> Cow<'_, str> {
    let Some(start) = name.find("<impl ").or_else(|| name.starts_with('<').then_some(0)) else { return name.into() };
    let inner = name[start + 1..].trim_start_matches("impl ");
    let mut depth = 1;
    let end = inner.find(|character| {
        depth += match character {
            '<' => 1,
            '>' => -1,
            _ => 0,
        };
        depth == 0
    });
    match end.map(|end| (&inner[..end], &inner[end + 1..])) {
        Some((of_type, rest)) if !of_type.contains(" as ") => format!("{}{of_type}{rest}", &name[..start]).into(),
        _ => name.into(),
    }
}

/// Returns a demangled name's crate: `a` for `a::b::c`, `<a::B as d::E>::f` and `<&mut a::B>::f`.
fn crate_of(name: &str) -> &str {
    let mut rest = name;
    loop {
        let before = rest;
        rest = rest.trim_start_matches(['<', '&', '[', '(', '*', ' ']);
        for word in ["mut ", "const ", "dyn "] {
            rest = rest.strip_prefix(word).unwrap_or(rest);
        }
        if rest == before {
            break;
        }
    }
    let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
    let found = &rest[..end];
    // `<A as c::D<B>>::f` with a type parameter is code of the trait's crate.
    let is_parameter = found.len() <= 2 && found.chars().all(|c| c.is_ascii_uppercase());
    match rest[end..].strip_prefix(" as ") {
        Some(of) if is_parameter => crate_of(of),
        _ => found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        Rules::parse(
            "# comment\n crate coroner_x -- crash time\n crate core -- no state\nimport memcpy -- the compiler's\n\
             indirect coroner_x::chain::call -- the app's own\nsyscall gettid 186 178 -- who am I\nsyscall fork 57 - -- x",
        )
        .unwrap()
    }

    #[test]
    fn functions() {
        let rules = rules();
        assert_eq!(rules.function("coroner_x::a"), Ok(()));
        assert_eq!(rules.function("<coroner_x::A as core::ops::Drop>::drop"), Ok(()));
        assert_eq!(rules.function("<&mut coroner_x::A as core::fmt::Debug>::fmt"), Err(Offence::Formatting));
        assert_eq!(rules.function("core::panicking::panic_bounds_check"), Err(Offence::Panic));
        assert_eq!(rules.function("core::slice::index::slice_end_index_len_fail"), Err(Offence::Panic));
        assert_eq!(rules.function("core::slice::index::slice_index_fail"), Err(Offence::Panic));
        assert_eq!(rules.function("alloc::vec::Vec<T>::push"), Err(Offence::Allocator));
        assert_eq!(rules.function("__rustc::__rust_alloc"), Err(Offence::Allocator));
        assert_eq!(rules.function("std::io::stdio::_print"), Err(Offence::StandardLibrary));
        assert_eq!(rules.function("coroner_x::alloc::take"), Ok(()));
        assert_eq!(rules.function("serde::de::x"), Err(Offence::ForeignFunction));
        assert_eq!(rules.function("memcpy"), Ok(()));
        assert_eq!(rules.function("<A as core::slice::cmp::SlicePartialEq<B>>::equal"), Ok(()));
        assert_eq!(rules.function("<A as serde::X>::f"), Err(Offence::ForeignFunction));
        for name in ["a::B::f", "<a::B>::f", "x::c::<impl a::B>::f"] {
            assert!(is_path(name, "a::B::f"), "{name}");
        }
        assert!(is_path("<a::B as c::D<E>>::f", "<a::B as c::D<E>>::f") && !is_path("<a::B as c::D>::f", "a::B::f"));
        assert!(is_path("__aarch64_cas4_acq", "__aarch64_*") && !is_path("x::__aarch64_cas4", "x::*"));
    }

    #[test]
    fn imports_calls_and_system_calls() {
        let rules = rules();
        assert_eq!(rules.import("memcpy@GLIBC_2.14"), Ok(()));
        assert_eq!(rules.import("getenv"), Err(Offence::Import));
        assert_eq!(rules.import("pthread_mutex_lock"), Err(Offence::Lock));
        assert_eq!(rules.import("__tls_get_addr"), Err(Offence::LazyThreadLocal));
        assert_eq!(rules.indirect("coroner_x::chain::call"), Some("the app's own"));
        assert_eq!(rules.indirect("coroner_x::chain::recall"), None);
        assert_eq!(rules.system_call(Machine::X86_64, 186), Some("gettid"));
        assert_eq!(rules.system_call(Machine::Aarch64, 178), Some("gettid"));
        assert_eq!(rules.system_call(Machine::Aarch64, 57), None);
        assert_eq!(rules.unused(), ["fork"]);
    }

    #[test]
    fn an_entry_without_a_reason_is_rejected() {
        let error = Rules::parse("crate a -- b\nimport strlen").unwrap_err();
        assert!(format!("{error:#}").contains("line 2"), "{error:#}");
        assert!(Rules::parse("syscall read 0 -- x").is_err());
        assert!(Rules::parse("macro x -- y").is_err());
    }
}
