//! The resource of a log record: the run that crashed, not the one that sends the record.

use coroner_process::registers::Arch;
use coroner_report::model::{Report, RunFacts};
use coroner_report::wire::Os;
use opentelemetry_proto::tonic::resource::v1::Resource;

use crate::attributes::Attributes;
use crate::options::Labels;

/// Returns a report's resource.
pub(crate) fn from_report(report: &Report, labels: &Labels) -> Resource {
    let mut attributes = Attributes::default();
    let empty = RunFacts::default();
    let run = report.run.as_ref().unwrap_or(&empty);
    attributes.text("service.name", labels.service_name.clone());
    let instance = [report.header.run_id, run.run_id].into_iter().find(|id| !id.is_nil());
    // The sending run's environment describes that run, whose version may differ by now.
    attributes
        .text("service.version", version(run))
        .text("service.instance.id", instance.map(|id| id.hyphenated()))
        .set("process.pid", Some(report.header.pid).filter(|pid| *pid != 0));
    for (key, value) in &labels.resource {
        attributes.text(key, Some(value));
    }
    let process = Some(&report.header.process_name).filter(|name| !name.is_empty());
    let process = run.app.process_name.as_ref().or(process);
    let name = run.app.id.clone().or_else(|| run.app.name.clone());
    let unknown = || process.map_or_else(|| "unknown_service".to_owned(), |name| format!("unknown_service:{name}"));
    let environment = labels.environment.as_ref().or(run.environment.as_ref()).or(run.app.environment.as_ref());
    attributes
        .text("service.name", Some(name.filter(|name| !name.is_empty()).unwrap_or_else(unknown)))
        .text("deployment.environment.name", environment)
        .text("app.build_id", run.app.build.as_ref())
        .text("app.installation.id", run.app.installation_id.as_ref())
        .text("process.executable.name", process)
        .text("os.type", os_type(report.header.os))
        .text("os.name", os_name(report, run))
        .text("os.version", run.os.version.as_ref())
        .text("os.build_id", run.os.build.as_ref())
        .text("os.description", description(run))
        .text("host.arch", report.header.arch.map(arch))
        .text("device.model.identifier", run.device.model.as_ref())
        .text("device.manufacturer", report.header.os.is_apple().then_some("Apple"))
        .text("telemetry.sdk.name", Some("coroner"))
        .text("telemetry.sdk.language", Some("rust"))
        .text("telemetry.sdk.version", Some(sdk_version(report)));
    Resource { attributes: attributes.into_list(), ..Resource::default() }
}

/// Repeats resource attributes in a record.
///
/// The run that reports a crash is not the one that crashed.
pub(crate) fn repeat(report: &Report, attributes: &mut Attributes) {
    let Some(run) = &report.run else { return };
    attributes
        .text("service.version", version(run))
        .text("app.build_id", run.app.build.as_ref())
        .text("os.name", os_name(report, run))
        .text("os.version", run.os.version.as_ref());
}

/// Returns the version of Coroner in the crashed app.
pub(crate) fn sdk_version(report: &Report) -> &str {
    let of_report = report.header.sdk_version.as_str();
    if of_report.is_empty() { env!("CARGO_PKG_VERSION") } else { of_report }
}

fn version(run: &RunFacts) -> Option<&String> {
    run.release.as_ref().or(run.app.version.as_ref()).or(run.app.release.as_ref())
}

fn os_name(report: &Report, run: &RunFacts) -> Option<String> {
    let name = match report.header.os {
        Os::LINUX => "Linux",
        Os::ANDROID => "Android",
        Os::MACOS => "macOS",
        Os::IOS => "iOS",
        Os::TVOS => "tvOS",
        Os::WATCHOS => "watchOS",
        Os::VISIONOS => "visionOS",
        Os::WINDOWS => "Windows",
        Os::FREEBSD => "FreeBSD",
        _ => "",
    };
    run.os.name.clone().or_else(|| Some(name.to_owned()))
}

fn os_type(os: Os) -> Option<&'static str> {
    match os {
        Os::LINUX | Os::ANDROID => Some("linux"),
        Os::WINDOWS => Some("windows"),
        Os::FREEBSD => Some("freebsd"),
        os => os.is_apple().then_some("darwin"),
    }
}

/// Formats the system, such as `debian 12, kernel 6.1.0`.
fn description(run: &RunFacts) -> Option<String> {
    let distribution = [run.os.distribution.as_deref(), run.os.distribution_version.as_deref()];
    let distribution = distribution.into_iter().flatten().collect::<Vec<_>>().join(" ");
    let kernel = run.os.kernel_version.as_ref().map(|version| format!("kernel {version}"));
    let parts: Vec<String> =
        [Some(distribution), kernel].into_iter().flatten().filter(|part| !part.is_empty()).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn arch(arch: Arch) -> &'static str {
    match arch {
        Arch::X86_64 => "amd64",
        Arch::Aarch64 => "arm64",
    }
}
