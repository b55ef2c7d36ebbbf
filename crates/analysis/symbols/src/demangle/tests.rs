use super::*;

#[test]
fn source_names_are_matched_with_linker_names() {
    for (linker, source) in [
        ("_ZN11next_launch13store_to_null17h0123456789abcdefE", "store_to_null"),
        ("_RNvCs1234_7mycrate3foo", "foo"),
        ("_ZNSt6vectorIiSaIiEE9push_backEOi", "push_back"),
        ("_ZN4core3ops8function6FnOnce9call_once17h0123456789abcdefE", "call_once<fn(), ()>"),
        ("_ZN3app4main28_$u7b$$u7b$closure$u7d$$u7d$17h0123456789abcdefE", "{closure#0}"),
    ] {
        assert!(names_same_function(linker, source), "{linker} {source}");
        assert!(!names_same_function(linker, "another"), "{linker}");
    }
    // A name that isn't mangled adds nothing to DWARF's name; a mangled DWARF name needs no other.
    assert!(!names_same_function("foo", "foo"));
    assert!(!names_same_function("_Z3foov", "_Z3foov"));
    for (name, last) in [
        ("a::B<c::D>::f::<u8>(e::F)", "f"),
        ("<A as B>::f", "f"),
        ("void f<int>(int)", "f"),
        ("f<fn(u8) -> a::B, a::C>", "f"),
        ("f", "f"),
        ("", ""),
        ("a::", ""),
    ] {
        assert_eq!(last_part(name), last, "{name}");
    }
}

#[test]
fn cpp_types_are_demangled() {
    assert_eq!(demangle_cpp_type("St13runtime_error"), "std::runtime_error");
    assert_eq!(demangle_cpp_type("N4shop9DoorErrorE"), "shop::DoorError");
    assert_eq!(demangle_cpp_type("PKc"), "char const*");
    assert_eq!(demangle_cpp_type("i"), "int");
    // Already demangled, or not a type.
    for name in ["std::runtime_error", "foreign exception MOZ RUST", ""] {
        assert_eq!(demangle_cpp_type(name), name);
    }
}
