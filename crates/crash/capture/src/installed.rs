//! What an install made and a crash needs: immutable but for atomics, published by one pointer, never unmapped.
//!
//! Each install makes a value of its own, so that a handler that runs late, with the value of an install that has ended, reads
//! nothing that is being rewritten. What is large (the workspace) is one in a process and belongs to the owner of the report
//! lock; who has won the lock looks whether the install that it was called for is still the current one.

use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

#[cfg(not(target_vendor = "apple"))]
use coroner_report::run_state::ProcessIdentity;
use coroner_report::run_state::RunState;

use crate::InstallOptions;
use crate::handler_kind::HandlerKind;
use crate::limits::report_size;
use crate::os::platform_state::PlatformState;
use crate::run::{Place, RunFiles};
use crate::runtime_faults::{Fault, is_asked_first};

/// The longest path of a store, with its NUL (`PATH_MAX`).
pub(crate) const STORE_PATH: usize = 4096;

/// The run of this process.
#[derive(Debug)]
pub(crate) struct CurrentRun {
    pub files: RunFiles,
    /// The process that made it; a child of fork or vfork has another id.
    pub pid: i32,
    /// The same, as the run state has it.
    #[cfg(not(target_vendor = "apple"))]
    pub identity: ProcessIdentity,
    /// By the monotonic clock: since when the app runs with it.
    pub installed_at: AtomicU64,
    /// Nanoseconds since the epoch; on Linux of the install.
    pub process_start: u64,
    pub page_size: u32,
    /// The path of the program's file, in [`Installed`].
    pub program: &'static [u8],
    /// The mapped state.
    pub state: RunState<'static>,
}

/// See the module.
pub(crate) struct Installed {
    pub options: InstallOptions,
    /// The store's path, NUL-terminated.
    store: [u8; STORE_PATH],
    /// Where the program's path stands.
    pub program: [u8; STORE_PATH],
    pub run: CurrentRun,
    /// Fatal reports that this run has begun.
    pub reports: AtomicU32,
    /// Reports after which the process went on.
    pub non_fatal_reports: AtomicU32,
    /// What this system needs besides.
    pub platform: PlatformState,
}

// SAFETY: all fields are plain data, atomics or mappings, but what `PlatformState` says of itself, which only the owner of the
// report lock touches.
unsafe impl Sync for Installed {}

static INSTALLED: AtomicPtr<Installed> = AtomicPtr::new(core::ptr::null_mut());

/// The current install; `None` before the first and after an uninstall.
pub(crate) fn get() -> Option<&'static Installed> {
    // SAFETY: what is published here is never unmapped: a handler may still hold it.
    unsafe { INSTALLED.load(Ordering::Acquire).as_ref() }
}

impl Installed {
    /// Writes the fields into zeroed memory, without a copy on the stack of the caller.
    ///
    /// # Safety
    /// `at` points to a fresh, zeroed, page-aligned mapping of this type's size, which is never unmapped.
    pub(crate) unsafe fn place(
        at: *mut Installed,
        options: InstallOptions,
        store: &CStr,
        run: CurrentRun,
        platform: PlatformState,
    ) -> &'static Installed {
        // SAFETY: by the contract; zeros are valid counters and an empty path.
        unsafe {
            (&raw mut (*at).options).write(options);
            for (to, byte) in (*at).store.iter_mut().take(STORE_PATH - 1).zip(store.to_bytes()) {
                *to = *byte;
            }
            (&raw mut (*at).run).write(run);
            (&raw mut (*at).platform).write(platform);
            // Their page is there by the time of a crash.
            (&raw mut (*at).reports).write_volatile(AtomicU32::new(0));
            &*at
        }
    }

    /// The store's path.
    pub(crate) fn store(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.store).unwrap_or_default()
    }

    /// Its run, for opening reports.
    pub(crate) fn report_place(&self) -> Place<'_> {
        let (reserve, limits) = (report_size(&self.options), self.options.state.allowed());
        Place { run: &self.run.files, store: self.store(), reserve, limits }
    }

    pub(crate) fn publish(&'static self) {
        INSTALLED.store(core::ptr::from_ref(self).cast_mut(), Ordering::Release);
    }

    /// Takes it out of use. It stays mapped.
    pub(crate) fn withdraw(&self) {
        INSTALLED.store(core::ptr::null_mut(), Ordering::Release);
    }

    /// See [`is_asked_first`].
    pub(crate) fn asks_first(&self, fault: &Fault, handler: (usize, HandlerKind)) -> bool {
        is_asked_first(fault, handler, self.options.chain_first, self.reports.load(Ordering::Relaxed))
    }

    pub(crate) fn is_current(&self) -> bool {
        core::ptr::eq(INSTALLED.load(Ordering::Acquire), self)
    }

    /// A handler of the app has dealt with a crash after its report: the process goes on.
    #[cfg(target_vendor = "apple")]
    pub(crate) fn note_handled(&self, reported: crate::crash_context::Reported) {
        if let crate::crash_context::Reported::Here(number) = reported {
            self.run.state.set_crash_not_fatal(number);
        }
    }

    /// A SIGBUS, or a bad access, at that address: true if it is in the run state, whose file was cut or whose disk fails. Its page is replaced, since the
    /// app must not die of what it tells Coroner; the access is tried again. Crash path: one system call.
    pub(crate) fn replace_lost_page(&self, address: u64) -> bool {
        let files = &self.run.files;
        let page = self.run.page_size as usize;
        let is_ours =
            (address as usize).checked_sub(files.state_address).is_some_and(|offset| offset < files.state_size);
        // SAFETY: the page is of the run state's mapping, of which zeros are a state.
        is_ours && unsafe { coroner_process::files::replace_page(address as usize & !page.wrapping_sub(1), page) }
    }
}
