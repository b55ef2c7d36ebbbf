//! Structs that begin with their size, so that later versions can append fields.

use std::mem::MaybeUninit;

use crate::status::{Status, fail};

/// A struct that begins with its size.
///
/// # Safety
/// The struct must be `repr(C)`, its first field must be its size as a `usize`, and zero must be
/// valid in all fields.
pub(crate) unsafe trait SizedStruct: Copy {
    /// The struct's name in C.
    const NAME: &'static str;
    /// The minimum size in bytes, which every version of the struct has.
    const MIN_SIZE: usize;
}

/// Returns the size given by the caller, limited to the struct's size in this version.
///
/// # Safety
/// `given` must point to such a struct, whose first field can be read.
unsafe fn read_size<T: SizedStruct>(given: *const T) -> Result<usize, Status> {
    // SAFETY: the first field is readable, as the caller promises.
    let size = unsafe { given.cast::<usize>().read() };
    if size < T::MIN_SIZE {
        return Err(fail(Status::InvalidArgument, format!("invalid `size` {size}: expected sizeof({})", T::NAME)));
    }
    Ok(size.min(size_of::<T>()))
}

/// Reads the caller's struct. Fields beyond the caller's size are 0.
///
/// # Safety
/// `given` must point to the number of bytes given by its size.
pub(crate) unsafe fn read<T: SizedStruct>(given: *const T) -> Result<T, Status> {
    let mut known = MaybeUninit::<T>::zeroed();
    // SAFETY: as the caller promises.
    let size = unsafe { read_size(given) }?;
    // SAFETY: `size` bytes are readable, as the caller promises, and they fit.
    unsafe { given.cast::<u8>().copy_to_nonoverlapping(known.as_mut_ptr().cast(), size) };
    // SAFETY: zero is valid in all fields, and so is what C wrote to them.
    Ok(unsafe { known.assume_init() })
}

/// Fills in the fields within the caller's size, except the size itself.
///
/// # Safety
/// `into` must point to the number of bytes given by its size, which must be writable.
pub(crate) unsafe fn write<T: SizedStruct>(into: *mut T, value: &T) -> Result<(), Status> {
    // SAFETY: as the caller promises.
    let size = unsafe { read_size(into) }?;
    let first = size_of::<usize>();
    let value = std::ptr::from_ref(value).cast::<u8>();
    // SAFETY: `size` bytes are writable, as the caller promises, and `value` is at least as large.
    unsafe { value.add(first).copy_to_nonoverlapping(into.cast::<u8>().add(first), size - first) };
    Ok(())
}
