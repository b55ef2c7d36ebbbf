use super::*;

#[test]
fn a_boundary_ends_unsized_symbols_but_hides_none() {
    let mut builder = TableBuilder::default();
    for (start, name) in [(10, "a"), (30, "b")] {
        let name = builder.make_name(name.as_bytes()).unwrap();
        builder.add(start, 0, SymbolSource::Symtab, BindingRank::Global, name);
    }
    [20, 30, 40].into_iter().for_each(|at| builder.boundary(at));
    let table = builder.build();
    for (address, name) in [(19, "a"), (20, "-"), (29, "-"), (30, "b"), (39, "b"), (40, "-")] {
        assert_eq!(table.find(address).map_or(&b"-"[..], |found| found.name), name.as_bytes(), "{address}");
    }
}
