//! Everything that an install creates and a crash needs: immutable except for atomics, published
//! through one pointer, never unmapped.
//!
//! Each install creates its own value, so that a handler that runs late, with the value of an
//! install that has ended, reads nothing that is being rewritten. What uninstall releases (stacks,
//! tables, the run's files: [`Held`]) and the workspace, which exists once per process, belong to
//! the owner of the report lock: they can be reached only through a [`Claimed`], which a thread
//! gets for its lock token, and only as long as they have not been released.

use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use coroner_process::file_mirror::FileMirror;
use coroner_process::process_mark::ProcessMark;
use coroner_process::threads::process_id;
#[cfg(not(target_vendor = "apple"))]
use coroner_report::child_slots::Sizes;
#[cfg(not(target_vendor = "apple"))]
use coroner_report::run_state::ProcessIdentity;
use coroner_report::run_state::RunState;

#[cfg(not(target_vendor = "apple"))]
use crate::ForkPolicy;
use crate::InstallOptions;
use crate::handler_kind::HandlerKind;
use crate::limits::report_size;
use crate::os::platform_state::{PlatformState, Resources};
use crate::report_lock::ReportOwner;
#[cfg(not(target_vendor = "apple"))]
use crate::run::ChildReports;
use crate::run::{Place, RunFiles};
use crate::runtime_faults::{Fault, is_asked_first};
use crate::workspace::Workspace;

/// Longest path of a store in bytes, with its NUL (`PATH_MAX`).
pub(crate) const STORE_PATH: usize = 4096;

/// The run of this process.
#[derive(Debug)]
pub(crate) struct CurrentRun {
    /// The run's ID.
    #[cfg(not(target_vendor = "apple"))]
    pub id: [u8; 16],
    /// Whether a later launch can find the run.
    pub is_on_disk: bool,
    /// Addresses at which the state's file is mapped, for the process's life.
    pub state_mapping: Range<usize>,
    /// Copies the state's changes to the file.
    pub mirror: Option<&'static FileMirror>,
    /// ID of the process that created the run. Use [`Installed::is_own_process`] to tell it from
    /// its children.
    pub pid: i32,
    /// The process that created the run.
    pub process: ProcessMark,
    /// Identity of the process that created the run, as the run state stores it.
    #[cfg(not(target_vendor = "apple"))]
    pub identity: ProcessIdentity,
    /// When the app began to run with this install, in nanoseconds of the monotonic clock.
    pub installed_at: AtomicU64,
    /// Nanoseconds since the Unix epoch; on Linux, the time of the install.
    pub process_start: u64,
    pub page_size: u32,
    /// Path of the executable, stored in [`Installed`].
    pub program: &'static [u8],
    /// The state.
    pub state: RunState<'static>,
}

/// One install. See the module.
pub(crate) struct Installed {
    pub options: InstallOptions,
    /// The store's path, NUL-terminated.
    store: [u8; STORE_PATH],
    /// Buffer that holds the executable's path.
    pub program: [u8; STORE_PATH],
    pub run: CurrentRun,
    /// Reports reserved for this process's children.
    #[cfg(not(target_vendor = "apple"))]
    pub children: ChildReports,
    /// Number of fatal reports that this run has begun.
    pub reports: AtomicU32,
    /// Number of reports after which the process continued.
    pub non_fatal_reports: AtomicU32,
    /// Further state that this system needs. It stays for the process's life.
    pub platform: PlatformState,
    /// Accessed only through a lock token; `None` once it is released.
    held: UnsafeCell<Option<Held>>,
}

// SAFETY: all fields are plain data, atomics or mappings, except `held` and those that
// `PlatformState` documents, which only the owner of the report lock touches.
unsafe impl Sync for Installed {}

/// Resources that an install holds until it ends and that a report uses.
#[derive(Debug)]
pub(crate) struct Held {
    pub files: RunFiles,
    pub resources: Resources,
}

/// An install for which the calling thread may write a report: the thread owns the report lock, and
/// the install still has everything that a report uses, which nobody releases in the meantime.
pub(crate) struct Claimed {
    owner: ReportOwner,
    pub installed: &'static Installed,
    held: NonNull<Held>,
}

impl Claimed {
    /// Returns what a report uses; `None` for the workspace if it was never created.
    pub(crate) fn parts(&mut self) -> (&Held, Option<&mut Workspace>) {
        // SAFETY: `Installed::claim` found it, and only `take_held` with the token that is kept
        // here could take it out. Async-signal-safe: no call.
        let held = unsafe { self.held.as_ref() };
        (held, Workspace::of(&mut self.owner))
    }

    /// Returns the stacks and tables that a report uses.
    #[cfg(not(target_vendor = "apple"))]
    pub(crate) fn resources(&mut self) -> &Resources {
        &self.parts().0.resources
    }

    /// Returns the lock token, to be released.
    pub(crate) fn into_owner(self) -> ReportOwner {
        self.owner
    }
}

static INSTALLED: AtomicPtr<Installed> = AtomicPtr::new(core::ptr::null_mut());

/// Returns the current install; `None` before the first one and after an uninstall.
pub(crate) fn get() -> Option<&'static Installed> {
    // SAFETY: what is published here is never unmapped: a handler may still hold it.
    unsafe { INSTALLED.load(Ordering::Acquire).as_ref() }
}

/// Whether the calling process created its run, and is not a child of the process that did (made by
/// fork, vfork or clone). `false` while nothing is installed. Async-signal-safe.
pub fn is_own_process() -> bool {
    get().is_some_and(|installed| installed.is_own_process(process_id()))
}

impl Installed {
    /// Writes the fields into zeroed memory, without a copy on the caller's stack.
    ///
    /// # Safety
    /// `at` must point to a fresh, zeroed, page-aligned mapping of this type's size, which is never
    /// unmapped.
    pub(crate) unsafe fn place(
        at: *mut Installed,
        options: InstallOptions,
        store: &CStr,
        run: CurrentRun,
        platform: PlatformState,
        held: Held,
    ) -> &'static Installed {
        // SAFETY: by the contract; zeros are valid counters and an empty path.
        unsafe {
            (&raw mut (*at).options).write(options);
            for (to, byte) in (*at).store.iter_mut().take(STORE_PATH - 1).zip(store.to_bytes()) {
                *to = *byte;
            }
            (&raw mut (*at).run).write(run);
            #[cfg(not(target_vendor = "apple"))]
            (&raw mut (*at).children).write(ChildReports::unprepared());
            (&raw mut (*at).platform).write(platform);
            (&raw mut (*at).held).write(UnsafeCell::new(Some(held)));
            // This store makes the counters' page resident before a crash.
            (&raw mut (*at).reports).write_volatile(AtomicU32::new(0));
            &*at
        }
    }

    /// Whether the calling process, whose ID is `pid`, created the run, and is not a child of that
    /// process (made by fork, vfork or clone). Async-signal-safe.
    pub(crate) fn is_own_process(&self, pid: i32) -> bool {
        self.run.process.is_caller(pid)
    }

    /// Returns the store's path.
    pub(crate) fn store(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.store).unwrap_or_default()
    }

    /// Returns the run's place, for opening reports.
    pub(crate) fn report_place<'a>(&'a self, held: &'a Held) -> Place<'a> {
        let (reserve, limits) = (report_size(&self.options), self.options.state.allowed());
        Place {
            run: &held.files,
            store: self.store(),
            reserve,
            limits,
            #[cfg(not(target_vendor = "apple"))]
            children: &self.children,
        }
    }

    /// Returns the sizes of the reports reserved for children.
    #[cfg(not(target_vendor = "apple"))]
    fn child_sizes(&self) -> Sizes {
        Sizes::new(report_size(&self.options) as usize, self.options.state.allowed().size())
    }

    /// Reserves reports for children, before this process forks for the first time.
    #[cfg(not(target_vendor = "apple"))]
    pub(crate) fn prepare_child_reports(&self) {
        let wants = self.run.is_on_disk && self.options.fork == ForkPolicy::Report;
        if wants && self.children.is_unprepared() && self.is_own_process(process_id()) {
            let state_size = self.options.state.allowed().size();
            self.children.prepare(self.store(), &self.run.id, &self.child_sizes(), state_size);
        }
    }

    /// Returns `true` if no child has used the reports reserved for it, which are then removed.
    #[cfg(not(target_vendor = "apple"))]
    pub(crate) fn retire_child_reports(&self) -> bool {
        self.children.retire(self.store(), &self.run.id, &self.child_sizes())
    }

    /// Claims the install for the owner of the report lock.
    ///
    /// # Errors
    /// The lock token, which the caller must release, if the install has ended in the meantime.
    pub(crate) fn claim(&'static self, owner: ReportOwner) -> core::result::Result<Claimed, ReportOwner> {
        // SAFETY: the token proves that no other thread accesses it. Async-signal-safe: no call.
        match unsafe { &*self.held.get() } {
            Some(held) => Ok(Claimed { owner, installed: self, held: NonNull::from(held) }),
            None => Err(owner),
        }
    }

    /// Takes out what uninstall releases; `None` if it is already released.
    pub(crate) fn take_held(&self, _owner: &mut ReportOwner) -> Option<Held> {
        // SAFETY: as in `claim`. A `Claimed` keeps its token, so there is none.
        unsafe { (*self.held.get()).take() }
    }

    pub(crate) fn publish(&'static self) {
        INSTALLED.store(core::ptr::from_ref(self).cast_mut(), Ordering::Release);
    }

    /// Withdraws this install from use. It stays mapped.
    pub(crate) fn withdraw(&self) {
        INSTALLED.store(core::ptr::null_mut(), Ordering::Release);
    }

    /// Whether the handler is called before a report is written; see [`is_asked_first`].
    pub(crate) fn asks_first(&self, fault: &Fault, handler: (usize, HandlerKind)) -> bool {
        is_asked_first(fault, handler, self.options.chain_first, self.reports.load(Ordering::Relaxed))
    }

    /// Records that the app's handler has dealt with a crash after its report, and that the process
    /// continues.
    #[cfg(target_vendor = "apple")]
    pub(crate) fn note_handled(&self, reported: crate::crash_context::Reported) {
        if let crate::crash_context::Reported::Here(number) = reported {
            self.run.state.set_crash_not_fatal(number);
        }
    }

    /// Copies the first `bytes` bytes of the state to its file, and all changes from now on.
    pub(crate) fn open_mirror(&self, bytes: usize) {
        let address = self.run.state_mapping.start;
        if let Some(mirror) = self.run.mirror.filter(|_| address != 0) {
            // SAFETY: mapped for the state's size, and only ever replaced by private memory.
            unsafe { mirror.open(address) };
            self.run.state.copy_to_file(bytes);
        }
    }

    /// Replaces the page at `address` after a SIGBUS or bad access, and returns `true`, if it is in
    /// the mapping of the run state's file, which was truncated or whose disk fails. The app must
    /// not die because it records something for Coroner; the access is retried. Crash path: one
    /// system call.
    pub(crate) fn replace_lost_page(&self, address: u64) -> bool {
        let page = self.run.page_size as usize;
        let in_state = self.run.state_mapping.contains(&(address as usize));
        #[cfg(not(target_vendor = "apple"))]
        let is_ours = in_state || self.children.contains(address as usize);
        #[cfg(target_vendor = "apple")]
        let is_ours = in_state;
        if let Some(mirror) = self.run.mirror.filter(|_| in_state) {
            mirror.set_cut();
        }
        // SAFETY: the page is in the mapping of the run state's file, or in the header of the
        // children's reports, for which all zeros is a valid state.
        is_ours && unsafe { coroner_process::files::replace_page(address as usize & !page.wrapping_sub(1), page) }
    }
}
