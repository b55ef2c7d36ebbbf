//! Demangling of function names, and conversion of image ids to and from text.

use std::fmt::Write as _;

use coroner_symbols::{DebugId, Language, demangle};

fn name_of(mangled: &str) -> (String, Language) {
    let demangled = demangle(mangled);
    (demangled.name, demangled.language)
}

#[test]
fn the_language_is_recognized_by_the_prefix() {
    for (mangled, expected, language) in [
        ("_ZN4core9panicking5panic17h0123456789abcdefE", "core::panicking::panic", Language::Rust),
        ("_ZN4core9panicking5panic17h0123456789abcdefE.llvm.123456789", "core::panicking::panic", Language::Rust),
        ("_RNvCs1234_7mycrate3foo", "mycrate::foo", Language::Rust),
        (
            "_ZNSt6vectorIiSaIiEE9push_backEOi",
            "std::vector<int, std::allocator<int> >::push_back(int&&)",
            Language::Cpp,
        ),
        ("_Z3foov.cold", "foo() [clone .cold]", Language::Cpp),
        ("main", "main", Language::Plain),
        ("-[NSThread main]", "-[NSThread main]", Language::Plain),
        ("_Znonsense", "_Znonsense", Language::Plain),
    ] {
        assert_eq!(name_of(mangled), (expected.to_owned(), language), "{mangled}");
    }
    assert_eq!(demangle("$s8mangling12GenericUnionO3FooyACyxGSicAEmlF").language, Language::Swift);
}

#[cfg(feature = "swift")]
#[test]
fn swift_names_are_demangled() {
    assert_eq!(
        name_of("$s8mangling12GenericUnionO3FooyACyxGSicAEmlF").0,
        "mangling.GenericUnion.Foo<A>(mangling.GenericUnion<A>.Type) -> (Swift.Int) -> mangling.GenericUnion<A>"
    );
}

#[test]
fn exponential_back_references_are_refused_quickly() {
    // Each pair doubles the preceding type: 2^40 bytes if expanded.
    let mut name = String::from("_Z1fSt4pairIiiE");
    for i in 0..40 {
        let back = if i == 0 { "S0_".to_owned() } else { format!("S{}_", base36(i)) };
        let _ = write!(name, "St4pairI{back}{back}E");
    }
    let begun = std::time::Instant::now();
    let _ = demangle(&name);
    assert!(begun.elapsed().as_secs() < 20, "bounded output takes bounded time");
    assert_eq!(demangle(&"_Z".repeat(100_000)).language, Language::Plain);
    assert_eq!(demangle(&("_Z1f".to_owned() + &"P".repeat(30_000) + "i")).language, Language::Plain);
}

fn base36(value: u32) -> String {
    let digit = |d: u32| char::from_digit(d, 36).unwrap().to_ascii_uppercase();
    if value < 36 { digit(value).into() } else { format!("{}{}", digit(value / 36), digit(value % 36)) }
}

#[test]
fn ids_convert_between_text_and_bytes() {
    let id: DebugId = "A47FBD1D-E98B-3EED-8E54-AFE0F7C0EEA4".parse().unwrap();
    assert_eq!(id.to_string(), "a47fbd1de98b3eed8e54afe0f7c0eea4");
    assert_eq!(id.to_breakpad_macho(), "A47FBD1DE98B3EED8E54AFE0F7C0EEA40");
    assert!("0".parse::<DebugId>().is_err());
    assert!("00-00".parse::<DebugId>().is_err());
    assert!("xy".parse::<DebugId>().is_err());
    assert!("".parse::<DebugId>().is_err());
}

#[test]
fn breakpad_swaps_the_first_three_fields_of_an_elf_id() {
    let id: DebugId = "0123456789abcdef0123456789abcdef01234567".parse().unwrap();
    assert_eq!(id.to_breakpad_elf(), "67452301AB89EFCD0123456789ABCDEF0");
}
