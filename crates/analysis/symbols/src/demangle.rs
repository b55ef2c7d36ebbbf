//! Linker names back into source names: Rust (legacy and v0), C++ (Itanium ABI) and, with the feature `swift`, Swift.

use std::fmt::{self, Write};

/// The language that a linker name was made by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Language {
    /// Rust, legacy (`_ZN…17h…E`) or v0 (`_R…`).
    Rust,
    /// C++ by the Itanium ABI (`_Z…`), which Objective-C++ blocks also use.
    Cpp,
    /// Swift (`$s…`, `_T…`).
    Swift,
    /// Not mangled, or by no scheme that is known here: C, assembly, Objective-C methods.
    Plain,
}

/// A name for people, and the language that was recognised by its mangling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demangled {
    /// The demangled name; the linker's name where there is nothing to demangle.
    pub name: String,
    /// What the mangling says.
    pub language: Language,
}

/// The longest name that is handed out, in bytes. Back-references let a few bytes of mangled name ask for gigabytes.
const MAX_LENGTH: usize = 64 << 10;

/// The longest mangled name that is looked at. The demanglers' time is not linear in their input.
const MAX_MANGLED: usize = 32 << 10;

/// The source name of a linker name. Rust's disambiguating hash is left out; C++ has its parameters; a suffix that the
/// compiler added (`.cold`, `.llvm.…`) is kept the way the language's own tools show it. A name that can't be
/// demangled, or would be too long, comes back as it is.
///
/// The underscore that Mach-O puts before every name must be gone already.
pub fn demangle(linker_name: &str) -> Demangled {
    let plain = || Demangled { name: linker_name.into(), language: Language::Plain };
    if linker_name.len() > MAX_MANGLED {
        return plain();
    }
    // Rust first: its legacy names are C++ names as well, distinguished by the hash at their end.
    if let Ok(name) = rustc_demangle::try_demangle(linker_name) {
        let mut text = Bounded::default();
        if write!(text, "{name:#}").is_ok() {
            return Demangled { name: text.0, language: Language::Rust };
        }
        return plain();
    }
    if is_cpp(linker_name) {
        if let Ok(symbol) = cpp_demangle::BorrowedSymbol::new(linker_name.as_bytes()) {
            let options = cpp_demangle::DemangleOptions::new().recursion_limit(192);
            let mut text = Bounded::default();
            if symbol.structured_demangle(&mut text, &options).is_ok() {
                return Demangled { name: text.0, language: Language::Cpp };
            }
        }
        return plain();
    }
    if is_swift(linker_name) {
        return Demangled { name: swift(linker_name).unwrap_or_else(|| linker_name.into()), language: Language::Swift };
    }
    plain()
}

/// The source name of a C++ type by the name that its `std::type_info` has (`St13runtime_error`). What is none, and what can't
/// be demangled, comes back as it is.
pub(crate) fn demangle_cpp_type(name: &str) -> String {
    // The only mangling in which a type stands by itself: `typeinfo name for …`.
    let demangled = demangle(&format!("_ZTS{name}"));
    let source = demangled.name.strip_prefix("typeinfo name for ").filter(|_| demangled.language == Language::Cpp);
    source.map_or_else(|| name.to_owned(), ToOwned::to_owned)
}

/// Whether `linker_name` is the same function's as `source_name`, which DWARF has without its namespaces: programs with
/// lines alone (`line-tables-only`, `-gline-tables-only`) have no linker names in DWARF. Of the linker's name, the last part
/// counts, without parameters and generic arguments.
pub(crate) fn is_of_source_name(linker_name: &str, source_name: &str) -> bool {
    if demangle(source_name).language != Language::Plain {
        return false;
    }
    let demangled = demangle(linker_name);
    if demangled.language == Language::Plain {
        return false;
    }
    let last = last_part(&demangled.name);
    // Legacy Rust names have `{{closure}}` for DWARF's `{closure#0}`.
    let closure = |name: &str| name.trim_start_matches('{').starts_with("closure");
    last == last_part(source_name) || closure(last) && closure(source_name)
}

/// `f` of `a::B<c::D>::f::<u8>(e::F)`.
fn last_part(name: &str) -> &str {
    let (mut depth, mut start, mut end) = (0_u32, 0, None);
    let bytes = name.as_bytes();
    for (at, &byte) in bytes.iter().enumerate() {
        match byte {
            b'<' | b'(' | b'[' => {
                // Generic arguments after `::` belong to the part before it, and end it like the others.
                if depth == 0 && at > start {
                    end.get_or_insert(at);
                }
                depth += 1;
            }
            // The arrow of a function's type.
            b'>' if at > 0 && bytes.get(at - 1) == Some(&b'-') => {}
            b'>' | b')' | b']' => depth = depth.saturating_sub(1),
            b':' if depth == 0 && bytes.get(at + 1) == Some(&b':') => {
                let generic_arguments = bytes.get(at + 2) == Some(&b'<');
                if generic_arguments {
                    end.get_or_insert(at);
                } else {
                    (start, end) = (at + 2, None);
                }
            }
            _ => {}
        }
    }
    let part = &name[start..end.unwrap_or(name.len())];
    // A C++ template's name has its return type before it.
    part.rsplit(' ').next().unwrap_or(part)
}

/// `_Z`, and with more underscores for blocks and for constructors that the linker calls.
fn is_cpp(name: &str) -> bool {
    let body = name.trim_start_matches('_');
    body.starts_with('Z') && (1..=4).contains(&(name.len() - body.len())) || name.starts_with("_GLOBAL__")
}

/// `$s` (stable), `$S` and `_T0` (4.x), `_T` with a kind letter (3.x), with or without an underscore before them.
/// Source: Swift `docs/ABI/Mangling.rst`.
fn is_swift(name: &str) -> bool {
    let body = name.strip_prefix('_').unwrap_or(name);
    body.starts_with("$s") || body.starts_with("$S") || name.starts_with("_T0") || name.starts_with("_Tt")
}

#[cfg(feature = "swift")]
fn swift(name: &str) -> Option<String> {
    use symbolic_common::{Language, Name, NameMangling};
    use symbolic_demangle::{Demangle, DemangleOptions};
    let name = Name::new(name, NameMangling::Mangled, Language::Swift);
    name.demangle(DemangleOptions::complete()).filter(|text| text.len() <= MAX_LENGTH)
}

#[cfg(not(feature = "swift"))]
fn swift(_name: &str) -> Option<String> {
    None
}

/// A string that refuses to grow beyond [`MAX_LENGTH`].
#[derive(Default)]
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MAX_LENGTH {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
