//! Requirements of steps: found on the machine, or set up where possible.

use std::path::Path;
use std::process::Command;

use toolbox::{android_bed, tools};

use super::steps::Step;

/// Something a step needs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// A program on the path, and the Debian package that contains it.
    Program(&'static str, &'static str),
    /// A file, and the Debian package that contains it.
    File(&'static str, &'static str),
    /// A Rust target's standard library, from rustup.
    Target(&'static str),
    /// A nightly toolchain, from rustup.
    Nightly,
    /// Root's rights: mounts, namespaces.
    Root,
    /// `../shared/android-bed.tar.xz`, or the file that `CORONER_ANDROID_BED` names.
    AndroidBed,
}

impl Need {
    /// Its name, for people.
    pub(crate) fn name(self) -> String {
        match self {
            Need::Program(program, package) if program == package => program.to_owned(),
            Need::Program(name, package) | Need::File(name, package) => format!("{name} (Debian's {package})"),
            Need::Target(target) => format!("the Rust target {target}"),
            Need::Nightly => format!("the Rust toolchain {}", tools::NIGHTLY),
            Need::Root => "root's rights".to_owned(),
            Need::AndroidBed => "the Android bed".to_owned(),
        }
    }

    /// Whether it is there.
    pub(crate) fn is_met(self) -> bool {
        match self {
            Need::Program(program, _) => tools::on_path(program),
            Need::File(path, _) => Path::new(path).exists(),
            Need::Target(target) => tools::has_rust_target(target),
            Need::Nightly => {
                let rustc = Command::new("rustup").args(["run", tools::NIGHTLY, "rustc", "--version"]).output();
                rustc.is_ok_and(|output| output.status.success())
            }
            Need::Root => nix::unistd::geteuid().is_root(),
            Need::AndroidBed => android_bed::archive().is_file(),
        }
    }

    fn package(self) -> Option<&'static str> {
        match self {
            Need::Program(_, package) | Need::File(_, package) => Some(package),
            _ => None,
        }
    }
}

/// Sets up what the steps need and the machine lacks, as far as it can: Debian packages in one
/// call, Rust targets. What is missing afterwards is found by [`Need::is_met`].
pub(crate) fn set_up(steps: &[&Step]) {
    let mut missing: Vec<Need> = Vec::new();
    for need in steps.iter().flat_map(|step| step.needs.iter().chain(step.wants)) {
        if !missing.contains(need) && !need.is_met() {
            missing.push(*need);
        }
    }
    let mut packages: Vec<&str> = missing.iter().filter_map(|need| need.package()).collect();
    packages.sort_unstable();
    packages.dedup();
    if !packages.is_empty() {
        let installed = tools::install_debian_packages(&packages);
        // One package that can't be had must not keep the others away.
        if let (Err(error), true) = (installed, Need::Root.is_met()) {
            println!("installing packages one by one: {error:#}");
            for package in packages {
                if let Err(error) = tools::install_debian_package(package) {
                    println!("{error:#}");
                }
            }
        }
    }
    for need in missing {
        let result = match need {
            Need::Target(target) => tools::rust_target(target),
            Need::Nightly => tools::nightly(),
            _ => Ok(()),
        };
        if let Err(error) = result {
            println!("{error:#}");
        }
    }
}
