//! Lookup of addresses in symbol tables.

use std::fmt::Write;
use std::path::Path;

use coroner_symbols::{LookupAddress, SymbolFile};

/// Creates a file with these symbols: start, size (0: unknown) and name.
fn table(symbols: &[(u64, u64, &str)]) -> SymbolFile {
    let mut text = "MODULE Linux x86_64 67452301AB89EFCD0123456789ABCDEF0 app\n".to_owned();
    for &(start, size, name) in symbols {
        let _ = match size {
            0 => writeln!(text, "PUBLIC {start:x} 0 {name}"),
            _ => writeln!(text, "FUNC {start:x} {size:x} 0 {name}"),
        };
    }
    SymbolFile::from_bytes(Path::new("app.sym"), text.into_bytes()).unwrap().remove(0)
}

fn name_at(table: &SymbolFile, svma: u64) -> &str {
    let found = table.linker_symbol(LookupAddress::of_instruction(svma));
    found.map_or("-", |(name, _)| std::str::from_utf8(name).unwrap())
}

#[test]
fn the_innermost_symbol_wins_and_gaps_are_unnamed() {
    let table = table(&[(10, 20, "outer"), (15, 5, "inner"), (40, 0, "label"), (50, 10, "last")]);
    let expected = [
        (9, "-"),
        (10, "outer"),
        (14, "outer"),
        (15, "inner"),
        (19, "inner"),
        (20, "outer"),
        (29, "outer"),
        (30, "-"),
        (40, "label"),
        (49, "label"),
        (50, "last"),
        (59, "last"),
        (60, "-"),
    ];
    for (address, name) in expected {
        assert_eq!(name_at(&table, address), name, "{address}");
    }
}

#[test]
fn every_block_of_a_large_table_is_searched() {
    let names: Vec<String> = (0..1000).map(|number| format!("f{number}")).collect();
    for count in [1, 2, 7, 8, 9, 63, 64, 65, 127, 128, 129, 1000] {
        let symbols: Vec<(u64, u64, &str)> = (0..count).map(|i| (100 + i * 10, 5, &*names[i as usize])).collect();
        let table = table(&symbols);
        assert_eq!(name_at(&table, 99), "-");
        for i in 0..count {
            for (address, name) in
                [(100 + i * 10, &*names[i as usize]), (104 + i * 10, &names[i as usize]), (105 + i * 10, "-")]
            {
                assert_eq!(name_at(&table, address), name, "{count} {address}");
            }
        }
    }
}

#[test]
fn repeated_lookups_return_the_same_name_of_any_length() {
    let names: Vec<String> =
        [1, 7, 65_533, 65_534, 65_535, 65_536, 200_000].iter().map(|&length| "n".repeat(length)).collect();
    let symbols: Vec<(u64, u64, &str)> =
        names.iter().enumerate().map(|(i, name)| (100 + i as u64 * 10, 10, &**name)).collect();
    let table = table(&symbols);
    for _ in 0..3 {
        for (start, _, name) in &symbols {
            assert_eq!(name_at(&table, start + 3).len(), name.len());
        }
    }
}

#[test]
fn distant_ranges_are_found() {
    let symbols: Vec<(u64, u64, String)> =
        (0..500).map(|i| ((i % 100) * 10 + ((i / 100) << 32), 5, format!("f{i}"))).collect();
    for count in [100, 101, 500] {
        let symbols: Vec<(u64, u64, &str)> =
            symbols[..count].iter().map(|(start, size, name)| (*start, *size, &**name)).collect();
        let table = table(&symbols);
        for (start, _, name) in &symbols {
            assert_eq!((name_at(&table, start + 4), name_at(&table, start + 5)), (*name, "-"));
        }
        assert_eq!(name_at(&table, u64::MAX), "-");
    }
}

#[test]
fn overlaps_and_the_end_of_the_address_space_are_handled() {
    let table = table(&[(0, 10, "a"), (5, 10, "b"), (u64::MAX - 3, 100, "top")]);
    for (address, name) in [(4, "a"), (5, "b"), (14, "b"), (15, "-"), (u64::MAX - 1, "top")] {
        assert_eq!(name_at(&table, address), name, "{address}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_default_symbol_version_is_preferred() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let source = r#"
        void release(void *block) { (void)block; }
        void old_release(void *block) __attribute__((alias("release")));
        void also_old_release(void *block) __attribute__((alias("release")));
        __asm__(".symver old_release, a_release@LIB_1");
        __asm__(".symver also_old_release, z_release@LIB_1");
        __asm__(".symver release, release@@LIB_2");
    "#;
    std::fs::write(path("library.c"), source).unwrap();
    std::fs::write(path("versions"), "LIB_1 { local: *; }; LIB_2 { } LIB_1;").unwrap();
    let mut compiler = std::process::Command::new("gcc");
    compiler.args(["-shared", "-fPIC", "-s", "-Wl,--version-script=versions", "-o", "library.so", "library.c"]);
    assert!(compiler.current_dir(folder.path()).status().unwrap().success());
    let bytes = std::fs::read(path("library.so")).unwrap();
    let release = {
        use object::{Object, ObjectSymbol};
        let file = object::File::parse(&*bytes).unwrap();
        file.dynamic_symbols().find(|symbol| symbol.name() == Ok("release")).unwrap().address()
    };
    let file = SymbolFile::from_bytes(&path("library.so"), bytes).unwrap().remove(0);
    assert_eq!(name_at(&file, release), "release");
}
