//! Stack traces in the protocol's form: frames oldest first, registers by name.

use std::cell::RefCell;

use coroner_report::model::{
    Exception, Frame as Found, ImageIndex, InApp, InAppRules, Registers, Report, Skipped, Thread, is_panic_function,
};
use coroner_report::wire::{FoundBy, Monitor};
use sentry_types::protocol::v7::{Addr, Frame, Map as Sorted, RegVal, Stacktrace};
use serde_json::{Map, Value};

use crate::extensions::{PLATFORM, TRUST};

/// Maximum number of a stack's frames in an event, the same as Relay's (`max_frames` of its
/// schema). Larger stacks keep the first and the last half of this number.
pub const MAX_FRAMES: usize = 250;

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
            stack.registers.insert(name.to_owned(), RegVal(value));
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
        (!frames.is_empty()).then(|| Stacktrace { frames, ..Stacktrace::default() })
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
            lineno: found.line.filter(|line| *line > 0).map(u64::from),
            colno: found.column.filter(|column| *column > 0).map(u64::from),
            // A server with debug files replaces each frame that has an address with all functions
            // at that address (`get_frames_for_symbolication` of Sentry). With the address in all
            // inlined functions, four would become sixteen. If they are known, a server's debug
            // file can't add anything.
            instruction_addr: found.inlined.is_empty().then_some(Addr(address.0)),
            symbol_addr: found.symbol_address.map(|address| Addr(address.0)),
            image_addr: image.map(|image| Addr(image.load_address.0)),
            vars: Sorted::from([(TRUST.to_owned(), found.trust().into())]),
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
                lineno: inlined.line.filter(|line| *line > 0).map(u64::from),
                colno: inlined.column.filter(|column| *column > 0).map(u64::from),
                // The symbol address belongs to the enclosing function; an inlined function has
                // none.
                symbol_addr: None,
                ..whole.clone()
            })
            .collect();
        inlined.into_iter().chain([whole]).map(move |mut frame| {
            let (package, function) = (frame.package.as_deref(), frame.function.as_deref());
            let is_in_app = || self.in_app.is(package, function, frame.filename.as_deref());
            frame.in_app = Some(found.in_app.unwrap_or_else(is_in_app));
            if is_managed {
                frame.instruction_addr = None;
                // Java frames have no module; frames of other runtimes have the language there.
                let language = frame.package.take();
                if language.is_none() {
                    let method = frame.function.take().unwrap_or_default();
                    let (class, name) = method.rsplit_once('.').unwrap_or(("", &method));
                    frame.module = Some(class.to_owned());
                    frame.function = Some(name.to_owned());
                }
                let platform = language.unwrap_or_else(|| "java".to_owned());
                frame.vars.insert(PLATFORM.to_owned(), platform.into());
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
