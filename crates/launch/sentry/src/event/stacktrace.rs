//! Stacks in the protocol's words: frames oldest first, registers by name.

use std::cell::RefCell;
use std::collections::BTreeMap;

use coroner_report::model::{
    Exception, Frame as Found, ImageIndex, InApp, InAppRules, Registers, Report, Skipped, Thread,
};
use coroner_report::wire::FoundBy;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Most frames of a stack in an event: what Relay keeps (`max_frames` of its schema). Of more, the first and the last half.
pub const MAX_FRAMES: usize = 250;

/// A stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stacktrace {
    /// The frames, outermost first: where it happened comes last.
    pub frames: Vec<Frame>,
    /// The registers of the innermost frame, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub registers: BTreeMap<String, String>,
    /// `none`: each `instruction_addr` is inside of its instruction already. A return address has been made the address
    /// before it, and one behind a signal frame has not, which a server could not know.
    pub instruction_addr_adjustment: String,
    /// Whether the thread was looked at while it ran, and no exception was raised there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<bool>,
}

/// A frame of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// The function, demangled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// Its symbol, as the symbol table has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub symbol: Option<String>,
    /// Path of the image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub package: Option<String>,
    /// Source file: its path as far as it is relative, else its last component.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filename: Option<String>,
    /// Source file, where its path is absolute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub abs_path: Option<String>,
    /// Line, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lineno: Option<u32>,
    /// Column, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub colno: Option<u32>,
    /// The class of a method of Java.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// The language of a frame that its runtime has said, such as `java` or `javascript`, in an event of native code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// The address whose instruction this frame was at; empty for a frame of a managed runtime, and where functions were inlined at it.
    ///
    /// A server with debug files puts all functions of an address in place of each frame that has one, and leaves the others as they
    /// are (`get_frames_for_symbolication` of Sentry). Functions that share an address, each with it, would be multiplied: four
    /// would be sixteen.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub instruction_addr: String,
    /// Where the function starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub symbol_addr: Option<String>,
    /// Where the image was loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_addr: Option<String>,
    /// Whether it is the app's own code.
    pub in_app: bool,
    /// How it was found: `context`, `cfi`, `fp`, `prewalked`, `scan`.
    pub trust: String,
}

pub(super) struct Stacks<'r> {
    report: &'r Report,
    index: ImageIndex,
    in_app: InApp<'r>,
    /// By a stack's name, how many of its frames are not in the event.
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

    /// How many frames of which stacks are not in the event, once all stacks are made.
    pub(super) fn left_out(&self) -> Map<String, Value> {
        self.left_out.borrow().clone()
    }

    /// The stack of the thread `tid`, as far as it was captured.
    pub(super) fn of_thread_with_id(&self, tid: u64) -> Option<Stacktrace> {
        self.of_thread(self.report.threads.iter().find(|thread| thread.tid == tid)?)
    }

    pub(super) fn of_thread(&self, thread: &Thread) -> Option<Stacktrace> {
        let mut stack = self.of_frames(&thread.frames, &thread.skipped, || format!("thread {}", thread.tid))?;
        for (name, value) in thread.registers.iter().flat_map(Registers::named) {
            stack.registers.insert(name.to_owned(), format!("{value:#x}"));
        }
        Some(stack)
    }

    /// Of a hang whose thread was sampled: the stack in which it spent the most time.
    pub(super) fn of_profile(&self) -> Option<Stacktrace> {
        let profile = self.report.profile.as_ref()?;
        let (frames, _) = profile.heaviest_stack()?;
        self.of_frames(&frames, &[], || format!("profile of thread {}", profile.tid))
    }

    /// The stack of a throw, where the runtime kept it.
    pub(super) fn of_exception(&self, thrown: &Exception) -> Option<Stacktrace> {
        let name = || format!("exception {}", thrown.type_name.as_deref().unwrap_or_default());
        self.of_frames(&thrown.frames, &thrown.skipped, name)
    }

    fn of_frames(&self, found: &[Found], skipped: &[Skipped], name: impl FnOnce() -> String) -> Option<Stacktrace> {
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

    /// A frame of machine code as the functions that it is in: those inlined, innermost first, then its own.
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
            // What knows the inlined functions knows all that a server's debug file says.
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
                // The function's start is that of the one it was inlined into; this one has none.
                symbol_addr: None,
                ..whole.clone()
            })
            .collect();
        inlined.into_iter().chain([whole]).map(move |mut frame| {
            let (package, function) = (frame.package.as_deref(), frame.function.as_deref());
            frame.in_app = found.in_app.unwrap_or_else(|| self.in_app.is(package, function, frame.filename.as_deref()));
            if is_managed {
                frame.instruction_addr = String::new();
                // Java's have no module; those of other runtimes have its language there.
                let language = frame.package.take();
                if language.is_none() {
                    let method = frame.function.take().unwrap_or_default();
                    let (class, name) = method.rsplit_once('.').unwrap_or(("", &method));
                    frame.module = Some(class.to_owned());
                    frame.function = Some(name.to_owned());
                }
                frame.platform = Some(language.unwrap_or_else(|| "java".to_owned()));
            }
            // With a drive and backslashes, too.
            let is_absolute = |path: &String| path.starts_with('/') || path.get(1..3) == Some(":\\");
            if let Some(path) = frame.filename.clone().filter(is_absolute) {
                frame.filename = path.rsplit(['/', '\\']).next().map(ToOwned::to_owned);
                frame.abs_path = Some(path);
            }
            frame
        })
    }
}
