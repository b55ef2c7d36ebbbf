//! Facts that a machine's crash service stores beside a core dump.
//!
//! The core dump itself can't contain them.

use coroner_report::model::Timestamp;
use coroner_report::{Report, RunFacts};

/// Additional facts about a process that died.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Noted {
    /// Path of the program.
    pub executable: Option<String>,
    /// Time of death.
    pub time: Option<Timestamp>,
    /// The program's package.
    pub package: Option<String>,
    /// The package's version.
    pub package_version: Option<String>,
    /// The program's service: a systemd unit.
    pub unit: Option<String>,
    /// The distribution, such as `Ubuntu`.
    pub distribution: Option<String>,
    /// The distribution's version.
    pub distribution_version: Option<String>,
    /// The kernel's version.
    pub kernel: Option<String>,
}

impl Noted {
    /// Adds the facts that the report doesn't contain.
    pub fn apply(self, report: &mut Report) {
        if let (Some(crash), Some(time)) = (&mut report.crash, self.time)
            && crash.time.0 == 0
        {
            crash.time = time;
        }
        let name = self.executable.as_deref().and_then(|path| path.rsplit('/').next()).filter(|name| !name.is_empty());
        if let Some(name) = name {
            // The core dump only contains its first 15 bytes.
            name.clone_into(&mut report.header.process_name);
        }
        let run = report.run.get_or_insert_with(RunFacts::default);
        run.app.name = run.app.name.take().or_else(|| name.map(ToOwned::to_owned));
        run.app.executable = run.app.executable.take().or(self.executable);
        run.app.version = run.app.version.take().or(self.package_version);
        run.os.name.get_or_insert_with(|| "Linux".to_owned());
        run.os.kernel_version = run.os.kernel_version.take().or(self.kernel);
        run.os.distribution = run.os.distribution.take().or(self.distribution);
        run.os.distribution_version = run.os.distribution_version.take().or(self.distribution_version);
        let tags = [("package", self.package), ("systemd.unit", self.unit)];
        run.tags.extend(tags.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
    }
}
