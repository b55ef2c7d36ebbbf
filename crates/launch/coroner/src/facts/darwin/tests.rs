use super::*;

#[test]
fn families_are_models_without_their_numbers() {
    assert_eq!(family("iPhone15,2"), "iPhone");
    assert_eq!(family("MacBookPro16,2"), "MacBookPro");
    assert_eq!(family(""), "");
}

#[test]
fn this_systems_facts_are_read() {
    assert!(text(c"kern.osproductversion").split('.').all(|part| part.parse::<u32>().is_ok()));
    assert!(text(c"kern.version").starts_with("Darwin Kernel Version"));
    assert!(number(c"hw.ncpu").is_some_and(|count| count > 0));
    assert!(number(c"hw.memsize").is_some_and(|bytes| bytes > 1 << 28));
    assert!(boot_time().is_some_and(|boot| boot > 1_500_000_000 * 1_000_000_000));
    assert_eq!((text(c"kern.no_such_fact"), number(c"kern.no_such_fact")), (String::new(), None));
}
