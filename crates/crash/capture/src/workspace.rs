//! Memory that a session works with: allocated and touched at install, one per process, used only
//! by the owner of the report lock.

use core::mem::offset_of;
use core::sync::atomic::{AtomicPtr, Ordering};

use coroner_process::syscall::{Errno, Result};
use coroner_report::wire::Fault;
use coroner_unwind::RuleCache;

use crate::report_lock::ReportOwner;
use crate::run::{BUFFER, BUFFER_TOUCHED};
use coroner_process::files;
use coroner_walk::ImageList;

pub(crate) mod frame_ring;
pub(crate) mod symbol_names;

use frame_ring::FrameRing;
use symbol_names::Names;

/// The workspace. All zero is a valid value for every field except those that
/// [`Workspace::prepare`] sets.
pub(crate) struct Workspace {
    /// A fault of the crash path that isn't in a section yet.
    pub fault: Option<Fault>,
    /// Buffer for the section that is being written.
    pub buffer: [u8; BUFFER],
    /// The unwinder's rule cache, shared by all threads of one report.
    pub cache: RuleCache,
    /// The last frames of the thread that is being walked.
    pub ring: FrameRing,
    /// The images; `None` while Coroner is not installed.
    pub images: Option<ImageList>,
    /// Addresses to name, and buffers for naming them. On Darwin `None` if no install requested
    /// names; elsewhere the names of images whose files were replaced are always needed.
    pub names: Option<&'static mut Names>,
}

/// The process's workspace, once the first install has created it; never unmapped, so that a
/// handler that runs late finds it.
static WORKSPACE: AtomicPtr<Workspace> = AtomicPtr::new(core::ptr::null_mut());

impl Workspace {
    /// Returns the workspace for the owner of the report lock.
    pub(crate) fn of(_owner: &mut ReportOwner) -> Option<&'static mut Workspace> {
        // SAFETY: null, or a workspace that `prepare` made and nobody unmaps. One thread owns the
        // lock, and a session borrows the proof of it once.
        unsafe { WORKSPACE.load(Ordering::Acquire).as_mut() }
    }

    /// Creates the workspace, or reuses that of an earlier install, with a table of images (not
    /// async-signal-safe).
    ///
    /// # Errors
    /// The error of mmap; the table is unmapped.
    pub(crate) fn prepare(owner: &mut ReportOwner, images: ImageList, names: bool) -> Result<()> {
        match Self::made(owner, names) {
            Ok(workspace) => workspace.images = Some(images),
            Err(errno) => {
                images.unmap();
                return Err(errno);
            }
        }
        Ok(())
    }

    fn made(owner: &mut ReportOwner, names: bool) -> Result<&'static mut Workspace> {
        if WORKSPACE.load(Ordering::Acquire).is_null() {
            WORKSPACE.store(Self::map()?, Ordering::Release);
        }
        let workspace = Self::of(owner).ok_or(Errno(libc::ENOMEM))?;
        if (names || cfg!(not(target_vendor = "apple"))) && workspace.names.is_none() {
            let size = size_of::<Names>();
            let at = if names { files::map(size)? } else { files::map_untouched(size)? };
            // SAFETY: a fresh mapping of that size, zeroed, which is a valid empty `Names`, and
            // never unmapped.
            let made = unsafe { &mut *(at as *mut Names) };
            made.touch();
            workspace.names = Some(made);
        }
        Ok(workspace)
    }

    fn map() -> Result<*mut Workspace> {
        let buffer = offset_of!(Workspace, buffer);
        let at = files::map_but(size_of::<Workspace>(), buffer + BUFFER_TOUCHED..buffer + BUFFER)? as *mut Workspace;
        // SAFETY: a fresh mapping of that size, zeroed and page-aligned. Fields that are not
        // written here are empty when they are all zero, and would be built on the stack first.
        unsafe {
            (&raw mut (*at).fault).write(None);
            (&raw mut (*at).images).write(None);
            (&raw mut (*at).names).write(None);
        }
        Ok(at)
    }
}

#[cfg(test)]
mod tests;
