//! The parts of a report's model, tested separately.

use coroner_process::registers::Arch;
use coroner_report::model::{
    Address, AppFacts, Bytes, Frame, Id, IdError, Image, ImageIndex, InApp, InAppRules, Report, RunFacts, Thread,
    Timestamp, hide_home, is_runtime_code, is_runtime_function, mach_code_name, mach_exception_name, signal_code_name,
    signal_name, system_call_name,
};
use coroner_report::wire::{ImageKind, Os, crc32c};

#[test]
fn the_image_index_agrees_with_a_linear_search() {
    let mut seed = 1u64;
    let mut random = |limit: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % limit
    };
    for _ in 0..500 {
        let images: Vec<Image> = (0..random(8))
            .map(|_| Image { load_address: Address(random(60)), size: random(30), ..Image::default() })
            .collect();
        let index = ImageIndex::new(&images);
        for address in (0..100).map(Address) {
            let found = index.find(address).map(|image| images[image].load_address);
            let searched = images.iter().filter(|image| image.contains(address)).map(|image| image.load_address).max();
            assert_eq!(found, searched, "{address} in {images:?}");
        }
    }
    let all = [Image { load_address: Address(0), size: u64::MAX, ..Image::default() }];
    assert_eq!(ImageIndex::new(&all).find(Address(u64::MAX - 1)), Some(0));
    assert_eq!(ImageIndex::new(&[]).find(Address(0)), None);
}

#[test]
fn debug_ids_are_formatted_like_symbolics() {
    // The example from sentry-cli and symbolic: a build id and its debug id.
    let mut image = Image {
        kind: ImageKind::ELF,
        build_id: Bytes(vec![
            0xf1, 0xc3, 0xbc, 0xc0, 0x27, 0x98, 0x65, 0xfe, 0x30, 0x58, 0x40, 0x4b, 0x28, 0x31, 0xd9, 0xe6, 0x41, 0x35,
            0x38, 0x6c,
        ]),
        ..Image::default()
    };
    assert_eq!(image.debug_id().as_deref(), Some("c0bcc3f1-9827-fe65-3058-404b2831d9e6"));
    assert_eq!(image.code_id().as_deref(), Some("f1c3bcc0279865fe3058404b2831d9e64135386c"));
    image.kind = ImageKind::MACHO;
    image.build_id.0.truncate(16);
    assert_eq!(image.debug_id().as_deref(), Some("f1c3bcc0-2798-65fe-3058-404b2831d9e6"));
    image.build_id = Bytes::default();
    assert_eq!(image.debug_id(), None);
}

#[test]
fn signal_numbers_depend_on_the_system() {
    assert_eq!(signal_name(Os::LINUX, 7), Some("SIGBUS"));
    assert_eq!(signal_name(Os::MACOS, 10), Some("SIGBUS"));
    assert_eq!(signal_name(Os::MACOS, 7), Some("SIGEMT"));
    assert_eq!(signal_code_name(Os::LINUX, 11, 1), Some("SEGV_MAPERR"));
    assert_eq!(signal_code_name(Os::ANDROID, 11, -6), Some("SI_TKILL"));
    assert_eq!(signal_code_name(Os::LINUX, 4, 2), Some("ILL_ILLOPN"));
    assert_eq!(signal_code_name(Os::MACOS, 4, 2), Some("ILL_ILLTRP"));
    assert_eq!(signal_code_name(Os::LINUX, 8, 1), Some("FPE_INTDIV"));
    assert_eq!(signal_code_name(Os::MACOS, 8, 7), Some("FPE_INTDIV"));
    assert_eq!(signal_code_name(Os::LINUX, 11, 99), None);
    assert_eq!(signal_code_name(Os::LINUX, 11, i32::MIN), None);
    assert_eq!(mach_exception_name(1), Some("EXC_BAD_ACCESS"));
    assert_eq!(mach_code_name(1, 2), Some("KERN_PROTECTION_FAILURE"));
}

#[test]
fn system_calls_have_names() {
    use Arch::{Aarch64, X86_64};
    for (arch, number, name) in [
        (X86_64, 0, "read"),
        (X86_64, 257, "openat"),
        (X86_64, 334, "rseq"),
        (X86_64, 462, "mseal"),
        (Aarch64, 0, "io_setup"),
        (Aarch64, 56, "openat"),
        (Aarch64, 243, "recvmmsg"),
        (Aarch64, 260, "wait4"),
        (Aarch64, 424, "pidfd_send_signal"),
    ] {
        assert_eq!(system_call_name(Os::ANDROID, arch, number), Some(name));
    }
    for number in [-1, 244, 335, 423, 9999, 0x4000_0000, i64::MAX] {
        assert_eq!(system_call_name(Os::LINUX, Aarch64, number), None);
    }
    assert_eq!(system_call_name(Os::LINUX, X86_64, 335), None);
    // Darwin's numbers change.
    assert_eq!(system_call_name(Os::MACOS, X86_64, 0), None);
}

/// System calls of the host processor, from its C library's headers.
#[cfg(any(target_os = "linux", target_os = "android"))]
#[test]
fn native_system_calls_match_the_c_library() {
    for (number, name) in [
        (libc::SYS_openat, "openat"),
        (libc::SYS_futex, "futex"),
        (libc::SYS_ptrace, "ptrace"),
        (libc::SYS_exit_group, "exit_group"),
        (libc::SYS_mremap, "mremap"),
        (libc::SYS_io_uring_setup, "io_uring_setup"),
        (libc::SYS_process_vm_readv, "process_vm_readv"),
        (libc::SYS_getrandom, "getrandom"),
    ] {
        assert_eq!(system_call_name(Os::NATIVE, Arch::NATIVE, number), Some(name));
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
#[test]
fn native_signal_names_match_strsignal() {
    // Like `strsignal`, but with glibc's abbreviated names: SIG… in the host's own headers.
    for (number, name) in [
        (4, "SIGILL"),
        (5, "SIGTRAP"),
        (6, "SIGABRT"),
        (7, "SIGBUS"),
        (8, "SIGFPE"),
        (11, "SIGSEGV"),
        (13, "SIGPIPE"),
        (15, "SIGTERM"),
        (31, "SIGSYS"),
    ] {
        assert_eq!(signal_name(Os::NATIVE, number), Some(name));
    }
}

#[test]
fn runtime_functions_are_recognized_by_name() {
    for function in [
        "core::panicking::panic_fmt",
        "<alloc::vec::Vec<T,A> as core::ops::index::Index<I>>::index",
        "<usize as core::slice::index::SliceIndex<[T]>>::index",
        "<&mut F as core::ops::function::FnOnce<A>>::call_once",
        "__rustc::rust_begin_unwind",
        "coroner::panic::install::{{closure}}",
        "_start",
        // From a static program.
        "__pthread_kill_implementation.constprop.0",
        "malloc_printerr",
        "_int_free",
        "void std::swap<paint::Ink>(paint::Ink&, paint::Ink&)",
        "$ss17_assertionFailure__4file4line5flagss5NeverOs12StaticStringV_SSAHSus6UInt32VtF",
        "$ss6ResultO3mapyAByqd__q_Gqd__xXElF",
        "$ss17FixedWidthIntegerPsE15littleEndianxvg",
        "Swift.String.count.getter : Swift.Int",
        "Swift._assertionFailure(_: Swift.StaticString, _: Swift.String) -> Swift.Never",
        "static Coroner.Coroner.report(Swift.Error) throws -> ()",
        "std::vector<paint::Ink, std::allocator<paint::Ink> >::at(unsigned long)",
    ] {
        assert!(is_runtime_function(function), "{function}");
    }
    for function in [
        "paint::fill",
        "<paint::Picture as core::fmt::Display>::fmt",
        "<u8 as paint::Ink>::mix",
        "coroners::court",
        "$s4shop6ordersyS2iF",
        "shop.orders(Swift.Int) -> Swift.Int",
        "shop.Cart.total.getter : Swift.Int",
        "variable initialization expression of shop.Cart.total : Swift.Int",
        // Extensions of types in Swift's standard library.
        "$ss5ErrorP4shopE6reportyyF",
        "$ss6ResultO4shops5ErrorRz_rlE6reportyyF",
        "(extension in shop):Swift.Error.report() -> ()",
        "main",
        "main.cold",
        "mallocate",
        "pthread_create_all",
        "void paint::mix<std::string>(std::string const&)",
        "",
    ] {
        assert!(!is_runtime_function(function), "{function}");
    }
    // With line tables only, an inlined function has its bare name: the file identifies its owner.
    for file in [
        "/rustc/59807616e1fa2540724bfbac14d7976d7e4a3860/library/core/src/ptr/mod.rs",
        "/home/ada/.rustup/toolchains/stable/lib/rustlib/src/rust/library/std/src/panic.rs",
        "/home/ada/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/serde-1.0.0/src/lib.rs",
        "/home/ada/.cargo/git/checkouts/brush-1/src/lib.rs",
        "/home/ada/paint/vendor/brush/src/lib.rs",
        "/usr/include/c++/12/bits/stl_vector.h",
        "/home/ada/coroner/crates/base/process/src/linux/syscall.rs",
    ] {
        assert!(is_runtime_code(Some("write_volatile"), Some(file)), "{file}");
    }
    for file in [
        "/home/ada/paint/src/vendor/mod.rs",
        "src/main.rs",
        "/usr/src/app/src/main.rs",
        "/home/ada/coroner/crates/desk/faults/src/stack.rs",
    ] {
        assert!(!is_runtime_code(Some("fill"), Some(file)), "{file}");
    }
    assert!(is_runtime_code(Some("core::fmt::write"), None) && !is_runtime_code(None, None));
}

#[test]
fn ids_are_parsed_and_formatted() {
    let id = Id(std::array::from_fn(|i| i as u8 * 17));
    assert_eq!(id.to_string(), "00112233445566778899aabbccddeeff");
    assert_eq!("00112233-4455-6677-8899-AABBCCDDEEFF".parse(), Ok(id));
    for bad in ["", "00", "00112233445566778899aabbccddeeff0", "g0112233445566778899aabbccddeeff"] {
        assert_eq!(bad.parse::<Id>(), Err(IdError), "{bad}");
    }
}

#[test]
fn times_are_formatted() {
    assert_eq!(Timestamp(1_000_000_000_123_456_789).to_string(), "2001-09-09T01:46:40.123456789Z");
    assert_eq!(Timestamp(u64::MAX).to_string(), "2554-07-21T23:34:33.709551615Z");
    assert!((Timestamp(1_500_000_000).seconds() - 1.5).abs() < f64::EPSILON);
}

#[test]
fn crc32c_matches_the_published_vectors() {
    // RFC 3720, appendix B.4, and the usual check value.
    assert_eq!(crc32c(0, b"123456789"), 0xE306_9283);
    assert_eq!(crc32c(0, &[0; 32]), 0x8A91_36AA);
    assert_eq!(crc32c(0, &[0xFF; 32]), 0x62A8_AB43);
    let ascending: [u8; 32] = core::array::from_fn(|i| i as u8);
    assert_eq!(crc32c(0, &ascending), 0x46DD_794E);
}

#[test]
fn crc32c_can_be_continued_at_every_offset() {
    let bytes: [u8; 61] = core::array::from_fn(|i| (i * 37) as u8);
    for cut in 0..bytes.len() {
        assert_eq!(crc32c(crc32c(0, &bytes[..cut]), &bytes[cut..]), crc32c(0, &bytes));
    }
}

#[test]
fn windows_paths_are_split_like_others() {
    for (path, hidden) in [
        ("C:\\Users\\ada\\paint\\paint.exe", "~\\paint\\paint.exe"),
        ("C:\\Windows\\System32\\ntdll.dll", "C:\\Windows\\System32\\ntdll.dll"),
        ("/Users/ada/paint", "~/paint"),
    ] {
        let mut path = path.to_owned();
        hide_home(&mut path);
        assert_eq!(path, hidden);
    }
    let is_theirs = |file| is_runtime_code(Some("paint"), Some(file));
    assert!(is_theirs("C:\\Users\\ada\\.cargo\\registry\\src\\index\\serde\\src\\lib.rs"));
    assert!(is_theirs("/rustc/59807616e1fa\\library\\std\\src\\panicking.rs"));
    assert!(!is_theirs("C:\\Users\\ada\\paint\\src\\main.rs"));
}

/// Whether each function, with its file, is the app's own in a report with this stack.
fn own(program: &str, stack: &[(&str, &str)]) -> Vec<bool> {
    let frame = |(function, file): &(&str, &str)| Frame {
        module: Some(program.to_owned()),
        function: Some((*function).to_owned()),
        file: Some((*file).to_owned()).filter(|file| !file.is_empty()),
        ..Frame::default()
    };
    let frames: Vec<Frame> = stack.iter().map(frame).collect();
    let image = Image { path: program.to_owned(), is_main: true, ..Image::default() };
    let thread = Thread { crashed: true, main: true, frames, ..Thread::default() };
    let report = Report { images: vec![image], threads: vec![thread], ..Report::default() };
    let rules = InAppRules::default();
    let in_app = InApp::new(&rules, &report);
    report.threads[0].frames.iter().map(|frame| in_app.is_frame(frame)).collect()
}

#[test]
fn the_crate_with_main_is_the_apps_own_wherever_it_was_built() {
    const STD: &str = "/rustc/59807616e1fa/library/std/src/rt.rs";
    for (own_root, dependency_root) in [
        // `cargo install`, `cargo vendor`, Bazel, remapped paths, Nix.
        ("/home/ada/.cargo/registry/src/index-1/paint-1.2.0", "/home/ada/.cargo/registry/src/index-1/serde-1.0.219"),
        ("/build/vendor/paint", "/build/vendor/serde"),
        ("/build/paint", "/build/external/crates_io__serde-1.0.219"),
        ("/tmp/paint", "registry/serde-1.0.219"),
        ("/build/source", "/build/paint-1.2.0-vendor.tar.gz/serde-1.0.219"),
    ] {
        let (main, other) = (format!("{own_root}/src/main.rs"), format!("{own_root}/src/brush.rs"));
        let dependency = format!("{dependency_root}/src/lib.rs");
        let stack = [
            ("serde::de::read", dependency.as_str()),
            ("<paint::Brush as serde::Deserialize>::deserialize", &other),
            ("paint_core::load", &other),
            ("paint::main", &main),
            ("std::rt::lang_start_internal", STD),
        ];
        assert_eq!(own("/home/ada/.cargo/bin/paint", &stack), [false, true, true, true, false], "{own_root}");
    }
    // Another crate of the same checkout, and a panic on a thread without `main`.
    let checkout = "/home/ada/.cargo/git/checkouts/paint-0123/4567/crates";
    let stack = [
        ("core_paint::fill", &*format!("{checkout}/core/src/lib.rs")),
        ("paint::main", &format!("{checkout}/cli/src/main.rs")),
        ("std::rt::lang_start", STD),
    ];
    assert_eq!(own("/opt/paint/paint", &stack), [true, true, false]);
    let stack = [("my_paint::fill", "/home/ada/.cargo/registry/src/index-1/my-paint-1.0.0/src/main.rs")];
    assert_eq!(own("/opt/bin/my-paint", &stack), [true]);
}

#[test]
fn runtime_functions_of_go_are_not_the_apps_own() {
    let stack = [
        ("runtime.raise", "/usr/lib/go-1.19/src/runtime/sys_linux_amd64.s"),
        ("runtime.sigpanic", ""),
        ("github.com/pkg/errors.Wrap", "/home/ada/go/pkg/mod/github.com/pkg/errors@v0.9.1/errors.go"),
        ("main.(*T).get", "/home/ada/shop/main.go"),
    ];
    assert_eq!(own("/opt/shop", &stack), [false, false, false, true]);
}

#[test]
fn both_forms_of_a_path_below_var_are_the_same_program() {
    let frame = |path: &str| Frame { module: Some(path.to_owned()), ..Frame::default() };
    let image = Image { path: "/private/var/containers/X/Shop.app/Shop".to_owned(), is_main: true, ..Image::default() };
    let report = Report { images: vec![image], ..Report::default() };
    let rules = InAppRules::default();
    let in_app = InApp::new(&rules, &report);
    assert!(in_app.is_frame(&frame("/var/containers/X/Shop.app/Frameworks/Cart.framework/Cart")));
    assert!(in_app.is_frame(&frame("/private/var/containers/X/Shop.app/Shop")));
    assert!(!in_app.is_frame(&frame("/usr/lib/libobjc.A.dylib")));
}

#[test]
fn on_android_the_apps_data_and_its_java_package_are_its_own() {
    let mut report = Report::default();
    report.header.os = Os::ANDROID;
    let app = AppFacts { id: Some("com.example.shop".to_owned()), ..AppFacts::default() };
    report.run = Some(RunFacts { app, ..RunFacts::default() });
    let rules = InAppRules::default();
    let in_app = InApp::new(&rules, &report);
    for (module, function, is_own) in [
        ("/data/app/~~x==/com.example.shop-y==/lib/arm64/libshop.so", "pay", true),
        ("/apex/com.android.runtime/lib64/bionic/libc.so", "abort", false),
        ("java", "com.example.shop.Cart.pay", true),
        ("java", "com.example.common.Lock.take", true),
        ("java", "com.examples.Other.run", false),
        ("java", "android.view.View.performClick", false),
    ] {
        let found = in_app.is(Some(module), Some(function), None);
        assert_eq!(found, is_own, "{module} {function}");
    }
}
