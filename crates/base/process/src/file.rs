//! Open descriptors, owned and borrowed.

use crate::os::syscall::call;

/// An open descriptor, borrowed from its owner: a [`File`], or the app.
#[derive(Debug)]
#[repr(transparent)]
pub struct Descriptor(i32);

impl Descriptor {
    /// In place of a directory: a path is relative to the working directory.
    pub const WORKING_DIRECTORY: &Descriptor = &Descriptor(libc::AT_FDCWD);

    /// Borrows the descriptor with this number.
    ///
    /// # Safety
    /// The number's owner must allow what the reference is used for, as long as it is used.
    pub unsafe fn borrow_raw(number: &i32) -> &Descriptor {
        // SAFETY: the same representation; what it may be used for, by the contract.
        unsafe { &*core::ptr::from_ref(number).cast() }
    }

    /// The descriptor's number, for a system call.
    pub fn number(&self) -> i32 {
        self.0
    }
}

/// An open descriptor, closed by one system call when this value is dropped.
#[derive(Debug)]
pub struct File(Descriptor);

impl core::ops::Deref for File {
    type Target = Descriptor;

    fn deref(&self) -> &Descriptor {
        &self.0
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: no memory is touched, and nobody else has the number. Async-signal-safe: one
        // system call.
        let _ = unsafe { call!(close, self.0.0) };
    }
}

impl File {
    /// Takes over a descriptor that the kernel has just returned.
    pub(crate) fn opened(number: i32) -> File {
        File(Descriptor(number))
    }

    /// Takes over an open descriptor.
    ///
    /// # Safety
    /// It must be open, and nobody else may close it.
    pub unsafe fn from_number(number: i32) -> File {
        File::opened(number)
    }

    /// Leaves the descriptor open, and returns its number.
    pub fn into_number(self) -> i32 {
        core::mem::ManuallyDrop::new(self).number()
    }
}
