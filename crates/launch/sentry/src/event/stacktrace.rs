//! Stack traces in the protocol's form: frames oldest first, registers by name.

use std::cell::RefCell;
use std::collections::BTreeMap;

use coroner_report::model::{
    Exception, Frame as Found, ImageIndex, InApp, InAppRules, Registers, Report, Skipped, Thread, is_panic_function,
};
use coroner_report::wire::{FoundBy, Monitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Maximum number of a stack's frames in an event, the same as Relay's (`max_frames` of its
/// schema). Larger stacks keep the first and the last half of this number.
pub const MAX_FRAMES: usize = 250;

/// A stack trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stacktrace {
    /// The frames, outermost first.
    pub frames: Vec<Frame>,
    /// The registers of the innermost frame, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub registers: BTreeMap<String, String>,
    /// `none`: each `instruction_addr` is already inside its instruction. Return addresses have
    /// been decremented, except in frames called from a signal frame, which a server couldn't
    /// detect.
    pub instruction_addr_adjustment: String,
    /// Whether the stack was captured while the thread ran, without an exception raised there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<bool>,
}

/// A frame of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// The function, demangled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// The symbol's name as in the symbol table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub symbol: Option<String>,
    /// The image's path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub package: Option<String>,
    /// The source file: a relative path, or the last component of an absolute one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filename: Option<String>,
    /// The source file's absolute path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub abs_path: Option<String>,
    /// Line, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lineno: Option<u32>,
    /// Column, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub colno: Option<u32>,
    /// The class of a Java method.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// The language of a managed runtime's frame, such as `java` or `javascript`.
    ///
    /// Events themselves are of native code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// The address inside the frame's instruction.
    ///
    /// It is empty for frames of a managed runtime and where functions are inlined.
    ///
    /// A server with debug files replaces each frame that has an address with all functions at that
    /// address, and leaves the others unchanged (`get_frames_for_symbolication` of Sentry). If all
    /// inlined functions had their address, they would be multiplied: four would become sixteen.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub instruction_addr: String,
    /// The function's start address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub symbol_addr: Option<String>,
    /// The image's load address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_addr: Option<String>,
    /// Whether the frame is the app's own code.
    pub in_app: bool,
    /// The unwinding method: `context`, `cfi`, `fp`, `prewalked`, `scan`.
    pub trust: String,
}

/// Whether all functions of a frame only pass a panic on to the panic hook.
fn passes_panic_on(frame: &Found) -> bool {
    let whole = frame.function.as_deref();
    let mut names = frame.inlined.iter().map(|inlined| inlined.function.as_deref()).chain([whole]);
    names.all(|name| name.is_some_and(is_panic_function))
}

pub(super) struct Stacks<'r> {
    report: &'r Report,
    index: ImageIndex,
    in_app: InApp<'r>,
    /// The number of omitted frames by stack name.
    left_out: RefCell<Map<String, Value>>,
}

impl<'r> Stacks<'r> {
    pub(super) fn new(report: &'r Report, rules: &'r InAppRules) -> Self {
        Self {
            report,
            index: ImageIndex::new(&report.images),
            in_app: InApp::new(rules, report),
            left_out: RefCell::default(),
        }
    }

    /// Returns the number of omitted frames by stack name. Call it after all stacks were created.
    pub(super) fn left_out(&self) -> Map<String, Value> {
        self.left_out.borrow().clone()
    }

    /// Returns the stack of the thread `tid`, as far as it was captured.
    pub(super) fn thread_by_id(&self, tid: u64) -> Option<Stacktrace> {
        self.thread(self.report.threads.iter().find(|thread| thread.tid == tid)?)
    }

    pub(super) fn thread(&self, thread: &Thread) -> Option<Stacktrace> {
        let mut stack = self.convert_frames(&thread.frames, &thread.skipped, || format!("thread {}", thread.tid))?;
        for (name, value) in thread.registers.iter().flat_map(Registers::named) {
            stack.registers.insert(name.to_owned(), format!("{value:#x}"));
        }
        Some(stack)
    }

    /// Returns the stack in which a sampled hanging thread spent the most time.
    pub(super) fn profile(&self) -> Option<Stacktrace> {
        let profile = self.report.profile.as_ref()?;
        let (frames, _) = profile.heaviest_stack()?;
        self.convert_frames(&frames, &[], || format!("profile of thread {}", profile.tid))
    }

    /// Returns the stack of a throw, if the runtime kept it.
    pub(super) fn exception(&self, thrown: &Exception) -> Option<Stacktrace> {
        let name = || format!("exception {}", thrown.type_name.as_deref().unwrap_or_default());
        let is_panic = self.report.crash.as_ref().is_some_and(|crash| crash.monitor == Monitor::PANIC);
        let above = if is_panic { thrown.frames.iter().take_while(|frame| passes_panic_on(frame)).count() } else { 0 };
        // The frames inside the app's own call that panicked are the same for all panics.
        let frames = thrown.frames.get(above..).filter(|frames| !frames.is_empty()).unwrap_or(&thrown.frames);
        self.convert_frames(frames, &thrown.skipped, name)
    }

    fn convert_frames(
        &self,
        found: &[Found],
        skipped: &[Skipped],
        name: impl FnOnce() -> String,
    ) -> Option<Stacktrace> {
        let mut frames: Vec<Frame> = found.iter().flat_map(|frame| self.expand(frame)).collect();
        let mut left_out: u64 = skipped.iter().map(|skipped| skipped.count).sum();
        if frames.len() > MAX_FRAMES {
            let half = MAX_FRAMES / 2;
            left_out += (frames.len() - MAX_FRAMES) as u64;
            frames.drain(half..frames.len() - half);
        }
        if left_out > 0 {
            self.left_out.borrow_mut().insert(name(), left_out.into());
        }
        frames.reverse();
        (!frames.is_empty()).then(|| Stacktrace {
            frames,
            registers: BTreeMap::new(),
            instruction_addr_adjustment: "none".to_owned(),
            snapshot: None,
        })
    }

    /// Expands a machine-code frame to its functions.
    ///
    /// Inlined ones come first, from the innermost, then the frame's own.
    fn expand(&self, found: &Found) -> impl Iterator<Item = Frame> {
        let is_managed = found.found_by == FoundBy::MANAGED;
        let address = found.lookup_address();
        let image = self.index.find(address).and_then(|image| self.report.images.get(image));
        let package = found.module.clone().or_else(|| image.map(|image| image.path.clone()));
        let whole = Frame {
            function: found.function.clone().or_else(|| found.raw_function.clone()),
            symbol: found.raw_function.clone(),
            filename: found.file.clone(),
            lineno: found.line.filter(|line| *line > 0),
            colno: found.column.filter(|column| *column > 0),
            // If inlined functions are known, a server's debug file can't add anything.
            instruction_addr: if found.inlined.is_empty() { address.to_string() } else { String::new() },
            symbol_addr: found.symbol_address.map(|address| address.to_string()),
            image_addr: image.map(|image| image.load_address.to_string()),
            trust: found.trust().to_owned(),
            package,
            ..Frame::default()
        };
        let inlined: Vec<Frame> = found
            .inlined
            .iter()
            .map(|inlined| Frame {
                function: inlined.function.clone().or_else(|| inlined.raw_function.clone()),
                symbol: inlined.raw_function.clone(),
                filename: inlined.file.clone(),
                lineno: inlined.line.filter(|line| *line > 0),
                colno: inlined.column.filter(|column| *column > 0),
                // The symbol address belongs to the enclosing function; an inlined function has
                // none.
                symbol_addr: None,
                ..whole.clone()
            })
            .collect();
        inlined.into_iter().chain([whole]).map(move |mut frame| {
            let (package, function) = (frame.package.as_deref(), frame.function.as_deref());
            frame.in_app = found.in_app.unwrap_or_else(|| self.in_app.is(package, function, frame.filename.as_deref()));
            if is_managed {
                frame.instruction_addr = String::new();
                // Java frames have no module; frames of other runtimes have the language there.
                let language = frame.package.take();
                if language.is_none() {
                    let method = frame.function.take().unwrap_or_default();
                    let (class, name) = method.rsplit_once('.').unwrap_or(("", &method));
                    frame.module = Some(class.to_owned());
                    frame.function = Some(name.to_owned());
                }
                frame.platform = Some(language.unwrap_or_else(|| "java".to_owned()));
            }
            // Includes Windows paths with a drive and backslashes.
            let is_absolute = |path: &String| path.starts_with('/') || path.get(1..3) == Some(":\\");
            if let Some(path) = frame.filename.clone().filter(is_absolute) {
                frame.filename = path.rsplit(['/', '\\']).next().map(ToOwned::to_owned);
                frame.abs_path = Some(path);
            }
            frame
        })
    }
}
