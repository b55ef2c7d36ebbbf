//! Converts linker names to source names: Rust (legacy and v0), C++ (Itanium ABI) and, with the
//! feature `swift`, Swift.

use std::fmt::{self, Write};

/// The language of a linker name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Language {
    /// Rust, legacy (`_ZN…17h…E`) or v0 (`_R…`).
    Rust,
    /// C++ in the Itanium ABI (`_Z…`), which is also used for Objective-C++ blocks.
    Cpp,
    /// Swift (`$s…`, `_T…`).
    Swift,
    /// Not mangled, or with an unknown scheme: C, assembly, Objective-C methods.
    Plain,
}

/// A demangled name, and the language recognised by its mangling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demangled {
    /// The demangled name; the linker's name if it is not mangled.
    pub name: String,
    /// The language recognised by the mangling.
    pub language: Language,
}

/// Maximum length of a demangled name, in bytes. Back-references let a few bytes of mangled name
/// expand to gigabytes.
const MAX_LENGTH: usize = 64 << 10;

/// Maximum length of a mangled name that is processed, in bytes. The demanglers' time is not linear
/// in their input.
const MAX_MANGLED: usize = 32 << 10;

/// Returns the source name for a linker name.
///
/// Rust's disambiguating hash is left out; C++ names have their parameters; a suffix added by the
/// compiler (`.cold`, `.llvm.…`) is kept in the form of the language's own tools. A name that can't
/// be demangled, or would be too long, is returned unchanged.
///
/// Mach-O's leading underscore must have been removed already.
pub fn demangle(linker_name: &str) -> Demangled {
    let plain = || Demangled { name: linker_name.into(), language: Language::Plain };
    if linker_name.len() > MAX_MANGLED {
        return plain();
    }
    // Rust first: its legacy names are also C++ names, distinguished by the hash at their end.
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

/// Returns the source name of a C++ type from the name in its `std::type_info`
/// (`St13runtime_error`). Anything else, or what can't be demangled, is returned unchanged.
pub(crate) fn demangle_cpp_type(name: &str) -> String {
    // The only mangling in which a type stands alone: `typeinfo name for …`.
    let demangled = demangle(&format!("_ZTS{name}"));
    let source = demangled.name.strip_prefix("typeinfo name for ").filter(|_| demangled.language == Language::Cpp);
    source.map_or_else(|| name.to_owned(), ToOwned::to_owned)
}

/// Whether `linker_name` and `source_name` name the same function.
///
/// DWARF contains `source_name` without namespaces. Programs with only lines (`line-tables-only`,
/// `-gline-tables-only`) have no linker names in DWARF. Only the last part of the linker's name is
/// compared, without parameters and generic arguments.
pub(crate) fn names_same_function(linker_name: &str, source_name: &str) -> bool {
    if demangle(source_name).language != Language::Plain {
        return false;
    }
    let demangled = demangle(linker_name);
    if demangled.language == Language::Plain {
        return false;
    }
    let last = last_part(&demangled.name);
    // Legacy Rust names contain `{{closure}}` where DWARF has `{closure#0}`.
    let closure = |name: &str| name.trim_start_matches('{').starts_with("closure");
    last == last_part(source_name) || closure(last) && closure(source_name)
}

/// Returns `f` for `a::B<c::D>::f::<u8>(e::F)`.
fn last_part(name: &str) -> &str {
    let (mut depth, mut start, mut end) = (0_u32, 0, None);
    let bytes = name.as_bytes();
    for (at, &byte) in bytes.iter().enumerate() {
        match byte {
            b'<' | b'(' | b'[' => {
                // Generic arguments after `::` belong to the part before it, and end it like the
                // others.
                if depth == 0 && at > start {
                    end.get_or_insert(at);
                }
                depth += 1;
            }
            // The arrow in a function's type.
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
    // In a C++ template's name the return type comes first.
    part.rsplit(' ').next().unwrap_or(part)
}

/// Whether a name is a mangled C++ name.
///
/// It starts with `_Z`, or with more underscores, as for blocks and constructors called by the
/// linker.
fn is_cpp(name: &str) -> bool {
    let body = name.trim_start_matches('_');
    body.starts_with('Z') && (1..=4).contains(&(name.len() - body.len())) || name.starts_with("_GLOBAL__")
}

/// Whether a name is a mangled Swift name.
///
/// It starts with `$s` (stable), `$S` and `_T0` (4.x), `_T` and a kind letter (3.x), with or
/// without an underscore before them. Source: Swift `docs/ABI/Mangling.rst`.
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

/// A string that can't grow beyond [`MAX_LENGTH`].
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
