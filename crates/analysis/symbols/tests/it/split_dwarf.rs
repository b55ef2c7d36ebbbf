//! Debug information outside the symbol file: `.dwo`, `.dwp`, and `dwz`'s shared file. Each address
//! of a program has the same calls as with all debug information in one file.

#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Command;

use crate::common::fixture;
use coroner_symbols::{Call, LookupAddress, SymbolFile};
use object::{Object, ObjectSection};

fn run(folder: &Path, program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).current_dir(folder).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Returns the calls at each address of the functions, and the errors.
fn calls(path: &Path) -> (Vec<Vec<Call>>, Vec<String>) {
    let file = &SymbolFile::open(path).unwrap()[0];
    let start = |name: &str| {
        let symbol = |svma| file.symbol(LookupAddress::of_instruction(svma)).filter(|symbol| symbol.0 == name);
        (0..0x4000).find_map(symbol).unwrap_or_else(|| panic!("no {name}")).1
    };
    let addresses = ["_Z4deepi", "_ZN6shapes5totalEi", "entry"].map(start).into_iter().flat_map(|at| at..at + 0x30);
    let calls = addresses.map(|svma| file.calls(LookupAddress::of_instruction(svma))).collect();
    (calls, file.take_problems().iter().map(ToString::to_string).collect())
}

fn inlined(calls: &[Vec<Call>]) -> usize {
    calls.iter().filter(|calls| calls.len() > 1).count()
}

/// Builds `name` from the fixture's source, in a new folder below `folder`.
fn build(folder: &Path, name: &str, options: &[&str]) {
    build_with("g++", folder, name, options);
}

fn build_with(compiler: &str, folder: &Path, name: &str, options: &[&str]) {
    std::fs::create_dir_all(folder.join("work")).unwrap();
    let source = fixture("program.cpp").canonicalize().unwrap();
    let fixed = ["-w", "-O2", "-g", "-shared", "-fPIC", "-nostdlib", "-Wl,--build-id=sha1", "-o"];
    let output = format!("../{name}");
    let arguments: Vec<&str> = fixed
        .iter()
        .copied()
        .chain([output.as_str()])
        .chain(options.iter().copied())
        .chain([source.to_str().unwrap()])
        .collect();
    run(&folder.join("work"), compiler, &arguments);
}

#[test]
fn split_units_and_packages_are_read() {
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        build(folder, "plain.so", &[version]);
        build(folder, "app.so", &[version, "-gsplit-dwarf"]);
        let (expected, problems) = calls(&folder.join("plain.so"));
        assert!(inlined(&expected) > 20 && problems.is_empty(), "{problems:?}");
        let app = folder.join("app.so");
        assert_eq!(calls(&app), (expected.clone(), vec![]), "at the compiler's place, {version}");

        let made = std::fs::read_dir(folder).unwrap().chain(std::fs::read_dir(folder.join("work")).unwrap());
        let unit = made
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|end| end == "dwo"))
            .unwrap();
        let name = unit.file_name().unwrap().to_owned();

        // In a package, under either name. Binutils' `dwp` omits DWARF 5 units.
        run(folder, "dwp", &["-o", "app.dwp", unit.to_str().unwrap()]);
        std::fs::rename(&unit, folder.join("kept")).unwrap();
        if version == "-gdwarf-4" {
            assert_eq!(calls(&app), (expected.clone(), vec![]), "a package");
            std::fs::rename(folder.join("app.dwp"), folder.join("app.so.dwp")).unwrap();
            assert_eq!(calls(&app), (expected.clone(), vec![]), "a package");
            std::fs::remove_file(folder.join("app.so.dwp")).unwrap();
        }

        // Without the package: functions and lines, and one error about missing calls.
        let (without, problems) = calls(&app);
        assert_eq!((inlined(&without), problems.len()), (0, 1), "{problems:?}");
        assert!(problems[0].contains(name.to_str().unwrap()) && problems[0].contains("inlined"), "{problems:?}");
        assert!(without.iter().flatten().any(|call| call.name.as_deref() == Some("_Z4deepi") && call.line.is_some()));

        // Beside the program; a package from another build is not used.
        std::fs::rename(folder.join("kept"), folder.join(&name)).unwrap();
        assert_eq!(calls(&app), (expected, vec![]), "beside the program, {version}");
        let mut other = std::fs::read(folder.join(&name)).unwrap();
        build(folder, "other.so", &[version, "-gsplit-dwarf", "-DOTHER", "-O1"]);
        let made = std::fs::read_dir(folder).unwrap().chain(std::fs::read_dir(folder.join("work")).unwrap()).flatten();
        for entry in made.filter(|entry| entry.path().extension().is_some_and(|end| end == "dwo")) {
            if entry.path() != folder.join(&name) {
                other = std::fs::read(entry.path()).unwrap();
                std::fs::remove_file(entry.path()).unwrap();
            }
        }
        std::fs::write(folder.join(&name), other).unwrap();
        assert_eq!(inlined(&calls(&app).0), 0, "from another build, {version}");
    }
}

/// In DWARF 5, each type unit has its own `.debug_info.dwo` section, before that of the unit
/// itself.
#[test]
fn split_units_are_found_beside_type_units() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    build(folder, "plain.so", &["-gdwarf-5", "-fdebug-types-section"]);
    build(folder, "app.so", &["-gdwarf-5", "-fdebug-types-section", "-gsplit-dwarf"]);
    let made = std::fs::read_dir(folder).unwrap().chain(std::fs::read_dir(folder.join("work")).unwrap()).flatten();
    let unit = made.map(|entry| entry.path()).find(|path| path.extension().is_some_and(|end| end == "dwo")).unwrap();
    let bytes = std::fs::read(unit).unwrap();
    let sections = object::File::parse(&*bytes).unwrap();
    let is_info = |section: &object::Section<'_, '_>| section.name() == Ok(".debug_info.dwo");
    assert!(sections.sections().filter(is_info).count() > 1, "the compiler created no type unit");
    let expected = calls(&folder.join("plain.so"));
    assert!(inlined(&expected.0) > 20 && expected.1.is_empty(), "{:?}", expected.1);
    assert_eq!(calls(&folder.join("app.so")), expected);
}

/// Clang's type units are in the unit's own section, before it.
#[test]
fn split_units_are_found_behind_type_units() {
    if Command::new("clang").arg("--version").output().is_err() {
        eprintln!("skipped: can't run clang");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = ["-gdwarf-5", "-fdebug-types-section", "-gsplit-dwarf"];
    build_with("clang", folder.path(), "plain.so", &options[..2]);
    build_with("clang", folder.path(), "app.so", &options);
    let expected = calls(&folder.path().join("plain.so"));
    assert!(inlined(&expected.0) > 20 && expected.1.is_empty(), "{:?}", expected.1);
    assert_eq!(calls(&folder.path().join("app.so")), expected);
}

/// A package as created with Cargo's `split-debuginfo = "packed"`.
#[test]
fn a_package_from_rustc_is_read() {
    let source = "#[inline(always)] fn deepest(v: u32) -> u32 { if v > 9 { v * 3 } else { v ^ 5 } }
        #[inline(always)] fn deeper(v: u32) -> u32 { deepest(v.wrapping_add(1)).wrapping_add(deepest(v)) }
        #[unsafe(no_mangle)] pub extern \"C\" fn deep(v: u32) -> u32 { deeper(v) ^ deeper(!v) }";
    for version in ["-Cdwarf-version=4", "-Cdwarf-version=5"] {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        std::fs::write(folder.join("app.rs"), source).unwrap();
        for (name, how) in [("plain.so", "-Csplit-debuginfo=off"), ("app.so", "-Csplit-debuginfo=packed")] {
            let fixed = ["--edition=2024", "--crate-type=cdylib", "-Copt-level=3", "-Cdebuginfo=2", "app.rs", "-o"];
            run(folder, "rustc", &[&fixed[..], &[name, how, version]].concat());
        }
        let deep = |name: &str| {
            let file = &SymbolFile::open(&folder.join(name)).unwrap()[0];
            let symbol = |svma| file.symbol(LookupAddress::of_instruction(svma)).filter(|symbol| symbol.0 == "deep");
            let start = (0..0x10_0000).step_by(16).find_map(symbol).expect("deep").1;
            let calls =
                |svma| file.calls(LookupAddress::of_instruction(svma)).into_iter().map(|call| (call.name, call.line));
            let calls: Vec<Vec<_>> = (start..start + 0x20).map(|svma| calls(svma).collect()).collect();
            (calls, file.take_problems().len())
        };
        let packed = deep("app.so");
        assert!(packed.0.iter().filter(|calls| calls.len() > 2).count() > 4, "{packed:?}");
        assert_eq!(packed, deep("plain.so"), "{version}");
        std::fs::remove_file(folder.join("app.so.dwp"))
            .or_else(|_| std::fs::remove_file(folder.join("app.dwp")))
            .unwrap();
        let (without, problems) = deep("app.so");
        assert!(problems == 1 && without.iter().all(|calls| calls.len() < 3), "{without:?}");
    }
}

#[test]
fn debug_information_shared_by_dwz_is_read() {
    let (expected, _) = calls(&fixture("dwz/plain.elf"));
    assert!(inlined(&expected) > 20);
    assert_eq!(calls(&fixture("dwz/first.elf")), (expected.clone(), vec![]));
    // In another folder, without the shared file; and below a folder that contains it, like an
    // unpacked package.
    let folder = tempfile::tempdir().unwrap();
    let below = folder.path().join("usr/lib");
    std::fs::create_dir_all(&below).unwrap();
    std::fs::copy(fixture("dwz/first.elf"), below.join("first.elf")).unwrap();
    let (_, problems) = calls(&below.join("first.elf"));
    assert!(problems.iter().any(|problem| problem.contains("shared.dwz")), "{problems:?}");
    std::fs::copy(fixture("dwz/shared.dwz"), folder.path().join("shared.dwz")).unwrap();
    assert_eq!(calls(&below.join("first.elf")), (expected, vec![]));
}
