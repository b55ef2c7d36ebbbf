//! macOS's shared C++ runtime, and C++ libraries that need it.
//!
//! zig links its own libc++ into each program, where other images' calls don't reach it and `dlsym`
//! doesn't find it. On macOS it is a shared library, for which Coroner's hook and terminate handler
//! are written: so libc++abi and the parts of libc++ that `std::exception` needs are built as one
//! library from the sources in the `ziglang` package, with zig's own settings.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context;

use super::kit::{Kit, succeed};
use toolbox::tools;

/// Files of libc++abi.
///
/// Left out are those for C++ without exceptions, demangling, and thread-local destructors.
const LIBCXXABI: [&str; 16] = [
    "abort_message",
    "cxa_aux_runtime",
    "cxa_default_handlers",
    "cxa_exception",
    "cxa_exception_storage",
    "cxa_guard",
    "cxa_handlers",
    "cxa_personality",
    "cxa_vector",
    "cxa_virtual",
    "fallback_malloc",
    "private_typeinfo",
    "stdlib_exception",
    "stdlib_new_delete",
    "stdlib_stdexcept",
    "stdlib_typeinfo",
];

/// Compiler flags for all C++.
const FLAGS: &[&str] = &["-O1", "-funwind-tables", "-fno-sanitize=all", "-std=c++23", "-nostdinc++", "-fexceptions"];

/// Definitions that libc++'s `__config_site` leaves open.
const SETTINGS: &[&str] = &[
    "-DNDEBUG",
    "-D_LIBCPP_ABI_VERSION=1",
    "-D_LIBCPP_ABI_NAMESPACE=__1",
    "-D_LIBCPP_HARDENING_MODE_DEFAULT=_LIBCPP_HARDENING_MODE_NONE",
    "-D_LIBCPP_ASSERTION_SEMANTIC_DEFAULT=_LIBCPP_ASSERTION_SEMANTIC_HARDENING_DEPENDENT",
    "-D_LIBCPP_HAS_THREADS=1",
    "-D_LIBCPP_HAS_MONOTONIC_CLOCK=1",
    "-D_LIBCPP_HAS_TERMINAL=1",
    "-D_LIBCPP_HAS_FILESYSTEM=1",
    "-D_LIBCPP_HAS_RANDOM_DEVICE=1",
    "-D_LIBCPP_HAS_LOCALIZATION=1",
    "-D_LIBCPP_HAS_UNICODE=1",
    "-D_LIBCPP_HAS_WIDE_CHARACTERS=1",
    "-D_LIBCPP_HAS_VENDOR_AVAILABILITY_ANNOTATIONS=0",
    "-D_LIBCPP_PSTL_BACKEND_SERIAL",
    "-D_LIBCPP_DISABLE_VISIBILITY_ANNOTATIONS",
    "-D_LIBCXXABI_DISABLE_VISIBILITY_ANNOTATIONS",
];

/// Compiler flags for the runtime itself.
///
/// Its terminate handler prints nothing, because that needs half of stdio.
const RUNTIME: &[&str] = &[
    "-D_LIBCPP_BUILDING_LIBRARY",
    "-D_LIBCXXABI_BUILDING_LIBRARY",
    "-DLIBCXX_BUILDING_LIBCXXABI",
    "-DLIBCXXABI_SILENT_TERMINATE",
];

/// Returns zig's compiler with libc++'s headers.
fn compiler(kit: &Kit) -> anyhow::Result<(Command, PathBuf)> {
    let library = kit.zig.parent().context("zig has no folder")?.join("lib");
    let mut command = Command::new(&kit.zig);
    command.args(["c++", "-target", kit.arch.zig()]).args(FLAGS).args(SETTINGS);
    for folder in ["libcxxabi/include", "libcxxabi/src", "libcxx/include", "libcxx/src", "libcxx"] {
        command.arg("-I").arg(library.join(folder));
    }
    Ok((command, library))
}

/// Builds `libc++.1.dylib` into the folder of the system's libraries, once per version of zig.
fn build_runtime(kit: &Kit) -> anyhow::Result<PathBuf> {
    let runtime = kit.libraries.join("libc++.1.dylib");
    let stamp = kit.libraries.join(format!("libc++-of-{}-{}", tools::ZIGLANG.0, tools::ZIGLANG.1));
    if runtime.is_file() && stamp.is_file() {
        return Ok(runtime);
    }
    let mut objects = Vec::new();
    for name in
        LIBCXXABI.iter().map(|name| format!("libcxxabi/src/{name}.cpp")).chain(["libcxx/src/exception.cpp".into()])
    {
        let (mut command, library) = compiler(kit)?;
        let object = kit.libraries.join(format!("{}.o", name.replace('/', "-")));
        succeed(command.args(RUNTIME).arg("-c").arg(library.join(&name)).arg("-o").arg(&object))?;
        objects.push(object);
    }
    let mut link = Command::new(&kit.zig);
    link.args(["cc", "-target", kit.arch.zig(), "-dynamiclib", "-install_name", "/usr/lib/libc++.1.dylib"]);
    succeed(link.args(&objects).arg("-o").arg(&runtime)).context("linking libc++")?;
    for object in objects {
        fs::remove_file(object)?;
    }
    fs::write(stamp, "")?;
    Ok(runtime)
}

/// Builds a C++ library that needs the runtime.
pub(super) fn build_library(kit: &Kit, source: &Path) -> anyhow::Result<PathBuf> {
    let runtime = build_runtime(kit)?;
    let name = source.file_stem().context("a source without a name")?.to_string_lossy();
    let library = kit.programs.join(format!("{name}.dylib"));
    let (mut command, _) = compiler(kit)?;
    // Its types are its own: dyld would look for other types with the same name, which the host
    // doesn't.
    command.args(["-fvisibility=hidden", "-fomit-frame-pointer", "-Wno-exceptions"]);
    command.args(["-nostdlib++", "-dynamiclib", "-install_name"]).arg(&library);
    command.arg("-I").arg(tools::workspace_root().join("fixtures/exceptions"));
    succeed(command.arg(source).arg(runtime).arg("-o").arg(&library)).context("building a C++ library")?;
    Ok(library)
}
