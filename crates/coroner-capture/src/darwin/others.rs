//! The threads besides the crashed one: suspended one after another by the kernel, described for the report, resumed.
//!
//! Between the first suspension and the last resumption nothing is called that could lock in user space: only messages to the
//! kernel and guarded loads.

use coroner_machine::context::Context;
use coroner_machine::memory::Memory;
use coroner_machine::registers::Registers;
use coroner_machine::syscall::Result;
use coroner_machine::threads::{self, RunState, ThreadList, Tid};
use coroner_report::wire::{self, CaptureMethod, SecondCrash, ThreadFlags, ThreadState};
use coroner_unwind::SwiftAsync;
use mach2::port::mach_port_t;

use super::files;
use super::machinery::Waiting;
use super::messages::{self, Received};
use crate::global::Global;
use crate::monitor::exception::Ending;
use crate::pipeline::incident::Incident;

pub(crate) use coroner_machine::threads::ThreadName;

/// Threads that one report holds besides the crashed one.
const CAPACITY: usize = 4096;

/// A suspended thread.
#[derive(Clone, Copy, Debug)]
struct Entry {
    port: mach_port_t,
    /// What it was doing before it was suspended, as the report has it; 0 for unknown.
    state: u8,
    tid: Tid,
    queue_at: u64,
    specific: u64,
}

/// The suspended threads. All zero is empty.
#[derive(Debug)]
pub(crate) struct Table {
    entries: [Entry; CAPACITY],
    count: usize,
}

impl Table {
    /// An empty table in memory of its own (normal life): it is too large for the stack of who installs.
    ///
    /// # Errors
    /// What mmap answered.
    pub(crate) fn map() -> Result<*mut Table> {
        // Zeros are an empty table.
        files::map(size_of::<Table>()).map(|at| at as *mut Table)
    }

    /// Gives the memory back (normal life).
    ///
    /// # Safety
    /// It is from [`Table::map`], and nobody uses it any more.
    pub(crate) unsafe fn unmap(table: *mut Table) {
        // SAFETY: by the contract.
        unsafe { libc::munmap(table.cast(), size_of::<Table>()) };
    }
}

/// The lists that are asked for until one has no new thread: each is asked for when all of those before stand still.
const ROUNDS: usize = 4;

/// The other threads while they stand still.
pub(crate) struct Others {
    /// Kept until they go on: nothing is given back while they stand.
    lists: [Option<ThreadList>; ROUNDS],
    global: &'static Global,
    overflow: usize,
    /// The process survives what is reported: a crash of another thread has a report of its own, afterwards.
    survived: bool,
}

impl Others {
    /// Suspends all threads but the crashed one and Coroner's own. Nothing where the kernel gives no list.
    pub(crate) fn begin(global: &'static Global, incident: &Incident) -> Option<Others> {
        // SAFETY: the primary thread's own field.
        let table = unsafe { &mut *global.os.threads };
        table.count = 0;
        let survived = incident.ending() == Ending::GoesOn;
        let mut others = Others { lists: [const { None }; ROUNDS], global, overflow: 0, survived };
        for place in &mut others.lists {
            let Ok(list) = ThreadList::take() else { break };
            let before = table.count;
            for port in list.ports() {
                // The kernel gives a port the same name each time.
                let is_known = table.entries.iter().take(before).any(|entry| entry.port == *port);
                if is_known || global.os.is_own(*port) {
                    continue;
                }
                let Some(facts) = threads::facts(*port) else { continue };
                // Of a hang, its thread is one of them, and that which noticed it waits here.
                if facts.tid == incident.hung.map_or(incident.tid, |hung| hung.watcher) {
                    continue;
                }
                let Some(entry) = table.entries.get_mut(table.count) else {
                    others.overflow += 1;
                    continue;
                };
                let state = threads::activity(*port).and_then(|activity| activity.state);
                if threads::suspend(*port) {
                    let state = state.map_or(0, |state| thread_state(state).0);
                    let threads::Facts { tid, queue_at, specific } = facts;
                    *entry = Entry { port: *port, state, tid, queue_at, specific };
                    table.count += 1;
                }
            }
            *place = Some(list);
            // A thread that was made meanwhile may have made others.
            if table.count == before {
                break;
            }
        }
        others.lists.iter().any(Option::is_some).then_some(others)
    }

    /// Takes in the crashes of other threads that came before they were suspended: no more can come now.
    pub(crate) fn stop(&mut self, global: &'static Global) {
        if self.survived {
            return;
        }
        // SAFETY: the primary thread's own field.
        let waiting = unsafe { &mut *global.os.waiting.get() };
        for place in waiting.iter_mut().filter(|place| place.is_none()) {
            let (crash, waits) = match messages::receive(global.os.primary_port, Some(0), None) {
                Received::Exception(request) => {
                    if !super::report::is_ours(&request) {
                        request.answer(mach2::kern_return::KERN_FAILURE);
                        continue;
                    }
                    let signal = super::report::signal_of(request.exception, request.codes);
                    let is_access = request.exception == super::report::EXC_BAD_ACCESS;
                    let crash = SecondCrash {
                        tid: request.tid,
                        signal,
                        code: request.codes[0] as i32,
                        address: is_access.then_some(request.codes[1] as u64),
                        after_ns: Some(threads::monotonic_now()),
                    };
                    (crash, Waiting::Exception(request))
                }
                Received::Handed { place, reply } => {
                    let Some(incident) = global.os.handed.take(place) else {
                        reply.answer();
                        continue;
                    };
                    let signal = incident.signal;
                    let crash = SecondCrash {
                        tid: incident.tid,
                        signal: signal.map_or(0, |signal| signal.number),
                        code: signal.map_or(0, |signal| signal.code),
                        address: incident.address,
                        after_ns: Some(threads::monotonic_now()),
                    };
                    (crash, Waiting::Handed { place, reply })
                }
                Received::Stop => {
                    global.os.stopping.store(true, core::sync::atomic::Ordering::Release);
                    continue;
                }
                Received::Watch | Received::Nothing => break,
            };
            global.seconds.tell(&crash);
            *place = Some(waits);
        }
    }

    /// Each of them.
    pub(crate) fn threads(&self) -> impl Iterator<Item = Thread<'_>> {
        // SAFETY: the primary thread's own field, not written before `hold`.
        let table = unsafe { &*self.global.os.threads };
        table
            .entries
            .iter()
            .take(table.count)
            .map(|entry| Thread { entry, context: Context::of_thread(entry.port).ok() })
    }

    /// Those that found no room.
    pub(crate) fn overflow(&self) -> usize {
        self.overflow
    }

    /// The report is written; they stand still until [`let_go`].
    pub(crate) fn hold(self, global: &Global) {
        // SAFETY: the primary thread's own field.
        unsafe { *global.os.held.get() = Some(self) };
    }
}

/// Lets the other threads go on, if they are held. The primary thread calls it.
pub(crate) fn let_go(global: &Global) {
    // SAFETY: the primary thread's own fields.
    let (held, table) = unsafe { ((*global.os.held.get()).take(), &mut *global.os.threads) };
    if let Some(others) = held {
        for entry in table.entries.iter().take(table.count) {
            threads::resume(entry.port);
        }
        table.count = 0;
        // Their ports and the list's memory are given back last.
        drop(others.lists);
    }
}

/// A scheduler's state as the report has it.
fn thread_state(state: RunState) -> ThreadState {
    match state {
        RunState::Running => ThreadState::RUNNING,
        RunState::Stopped => ThreadState::STOPPED,
        RunState::Waiting => ThreadState::BLOCKED,
        RunState::Uninterruptible => ThreadState::UNINTERRUPTIBLE,
        RunState::Halted => ThreadState::IDLE,
    }
}

/// What the report says of the crashed thread besides its registers.
pub(crate) struct Crashed {
    pub name: ThreadName,
    pub is_main: bool,
    pub queue: Option<QueueName>,
    pub cpu_time: Option<(u64, u64)>,
    pub swift_async: SwiftAsync,
}

/// The crashed thread.
pub(crate) fn crashed(global: &Global, incident: &Incident, memory: &mut impl Memory) -> Crashed {
    let port = global.os.crashed.load(core::sync::atomic::Ordering::Acquire);
    let activity = threads::activity(port);
    let (queue_at, specific) = threads::facts(port).map_or((0, 0), |facts| (facts.queue_at, facts.specific));
    Crashed {
        name: activity.map_or(ThreadName::EMPTY, |activity| activity.name),
        is_main: incident.tid == global.os.main_thread,
        queue: QueueName::read(queue_at, global.os.label_offset, memory),
        cpu_time: activity.map(|activity| activity.cpu_time),
        swift_async: SwiftAsync::of_darwin_thread(memory, specific),
    }
}

/// The most bytes of a queue's label that are kept.
const LABEL: usize = 128;

/// The label of a dispatch queue.
pub(crate) struct QueueName {
    bytes: [u8; LABEL],
    length: usize,
}

impl QueueName {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// What the thread's place for its queue leads to (`dispatch_qaddr` of <mach/thread_info.h>, `dispatch_queue_offsets` of
    /// libdispatch's queue_private.h).
    fn read(queue_at: u64, label_offset: u32, memory: &mut impl Memory) -> Option<QueueName> {
        if queue_at == 0 || label_offset == 0 {
            return None;
        }
        let queue = memory.read_u64(queue_at).ok().filter(|queue| *queue != 0)?;
        let label = memory.read_u64(queue.wrapping_add(label_offset.into())).ok().filter(|label| *label != 0)?;
        let mut name = QueueName { bytes: [0; LABEL], length: 0 };
        for (index, place) in name.bytes.iter_mut().enumerate() {
            let mut byte = [0];
            if memory.read(label.wrapping_add(index as u64), &mut byte).is_err() || byte[0] == 0 {
                break;
            }
            *place = byte[0];
            name.length = index + 1;
        }
        (name.length > 0).then_some(name)
    }
}

/// What the report says of a thread.
pub(crate) struct Description {
    pub name: Option<ThreadName>,
    pub flags: ThreadFlags,
    pub is_main: bool,
    pub state: Option<ThreadState>,
    pub syscall: Option<i64>,
    pub queue: Option<QueueName>,
    pub cpu_time: Option<(u64, u64)>,
    pub captured_by: Option<CaptureMethod>,
    pub not_captured: Option<wire::NotCaptured>,
    pub registers: Option<Registers>,
    pub swift_async: SwiftAsync,
}

/// One of the other threads.
pub(crate) struct Thread<'a> {
    entry: &'a Entry,
    context: Option<Context>,
}

impl Thread<'_> {
    pub(crate) fn tid(&self) -> u64 {
        self.entry.tid
    }

    /// Whether there are registers of it.
    pub(crate) fn is_captured(&self) -> bool {
        self.context.is_some()
    }

    /// What there is to say of it. `given_up` says why its registers are not to be used.
    pub(crate) fn describe(
        &self,
        global: &Global,
        _incident: &Incident,
        given_up: Option<wire::NotCaptured>,
        memory: &mut impl Memory,
    ) -> Description {
        let Entry { port, state, tid, queue_at, specific } = *self.entry;
        let activity = threads::activity(port);
        let name = activity.map(|activity| activity.name).filter(|name| !name.as_bytes().is_empty());
        // A thread that hands its crash over waits in Coroner's handler: its registers are those of the crash.
        let handed = global.os.handed.of_thread(tid).map(|incident| incident.registers);
        let captured_by = if handed.is_some() { CaptureMethod::CRASH_CONTEXT } else { CaptureMethod::MACH };
        let registers = handed.or_else(|| self.context.map(|context| context.registers()));
        let registers = registers.filter(|_| given_up.is_none());
        let not_captured = match (&registers, given_up) {
            (Some(_), _) => None,
            (None, Some(reason)) => Some(reason),
            (None, None) => Some(wire::NotCaptured::ENDED),
        };
        Description {
            name,
            flags: ThreadFlags::default(),
            is_main: tid == global.os.main_thread,
            state: (state != 0).then_some(ThreadState(state)),
            syscall: None,
            queue: QueueName::read(queue_at, global.os.label_offset, memory),
            cpu_time: activity.map(|activity| activity.cpu_time),
            captured_by: registers.is_some().then_some(captured_by),
            not_captured,
            registers,
            swift_async: SwiftAsync::of_darwin_thread(memory, specific),
        }
    }
}
