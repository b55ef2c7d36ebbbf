//! Reads from a report's JSON form only what a list of reports needs.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::model::{
    Annotation, AppFacts, Code, Crash, Exception, Header, Image, Mapping, Report, RunFacts, StackMemory, Thread,
};

/// The parts of a report that are read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Head {
    header: Header,
    crash: Option<Crash>,
    exceptions: Vec<Exception>,
    threads: First<Thread>,
    images: First<Image>,
    stack_memory: Vec<StackMemory>,
    code: Vec<Code>,
    mappings: Vec<Mapping>,
    annotations: Vec<Annotation>,
    run: Option<HeadRun>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct HeadRun {
    app: AppFacts,
    release: Option<String>,
    environment: Option<String>,
    tags: BTreeMap<String, String>,
    fingerprint: Vec<String>,
}

/// The one wanted element of a list. Elements after it are skipped, not deserialized.
struct First<T>(Option<T>);

impl<T> Default for First<T> {
    fn default() -> Self {
        First(None)
    }
}

/// Selects the wanted element.
trait Wanted {
    fn is_wanted(&self) -> bool;
}

impl Wanted for Thread {
    fn is_wanted(&self) -> bool {
        self.crashed
    }
}

impl Wanted for Image {
    fn is_wanted(&self) -> bool {
        self.is_main
    }
}

impl<'de, T: Deserialize<'de> + Wanted> Deserialize<'de> for First<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Elements<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de> + Wanted> Visitor<'de> for Elements<T> {
            type Value = First<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<First<T>, A::Error> {
                while let Some(element) = elements.next_element::<T>()? {
                    if element.is_wanted() {
                        while elements.next_element::<IgnoredAny>()?.is_some() {}
                        return Ok(First(Some(element)));
                    }
                }
                Ok(First(None))
            }
        }

        deserializer.deserialize_seq(Elements(PhantomData))
    }
}

impl Report {
    /// Reads from a report's JSON form only what a list of reports needs.
    ///
    /// These are identity, crash, exceptions, the crashed thread with its memory, code and
    /// mappings, the program's image, annotations, and from the run the app, release, environment,
    /// tags and fingerprint. It takes a fraction of the time of [`from_json`](Self::from_json).
    ///
    /// # Errors
    /// If `json` is not valid JSON, or not that of a report.
    pub fn head_from_json(json: &[u8]) -> serde_json::Result<Report> {
        // If the whole text is checked for UTF-8 once, its strings don't need their own checks.
        let head: Head = match std::str::from_utf8(json) {
            Ok(json) => serde_json::from_str(json)?,
            Err(_) => serde_json::from_slice(json)?,
        };
        if head.header.event_id.is_nil() {
            return Err(serde::de::Error::custom("it has no event id of a Coroner report (`header.event_id`)"));
        }
        let run = head.run.map(|run| RunFacts {
            app: run.app,
            release: run.release,
            environment: run.environment,
            tags: run.tags,
            fingerprint: run.fingerprint,
            ..RunFacts::default()
        });
        let mut report = Report {
            header: head.header,
            crash: head.crash,
            exceptions: head.exceptions,
            threads: head.threads.0.into_iter().collect(),
            images: head.images.0.into_iter().collect(),
            stack_memory: head.stack_memory,
            code: head.code,
            mappings: head.mappings,
            annotations: head.annotations,
            run,
            ..Report::default()
        };
        report.name_numbers();
        Ok(report)
    }
}
