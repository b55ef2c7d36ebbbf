//! Structs that begin with their size, so that a later version may add fields behind those that a caller was compiled with.

use std::mem::MaybeUninit;

use crate::status::{Status, fail};

/// Such a struct.
///
/// # Safety
/// It is `repr(C)`, its first field is its size as a `usize`, and zeroes are valid in all its fields.
pub(crate) unsafe trait SizedStruct: Copy {
    /// Its name in C.
    const NAME: &'static str;
    /// As many bytes as every version had.
    const LEAST: usize;
}

/// The size that the caller gave.
///
/// # Safety
/// `given` points to one, of which the first field can be read.
unsafe fn size_of_given<T: SizedStruct>(given: *const T) -> Result<usize, Status> {
    // SAFETY: the first field is there, as the caller promises.
    let size = unsafe { given.cast::<usize>().read() };
    if size < T::LEAST {
        return Err(fail(Status::InvalidArgument, format!("`size` is not sizeof({})", T::NAME)));
    }
    Ok(size.min(size_of::<T>()))
}

/// What a caller gave. Fields that it does not know are 0.
///
/// # Safety
/// `given` points to as many bytes as its size says.
pub(crate) unsafe fn read<T: SizedStruct>(given: *const T) -> Result<T, Status> {
    let mut known = MaybeUninit::<T>::zeroed();
    // SAFETY: as the caller promises.
    let size = unsafe { size_of_given(given) }?;
    // SAFETY: so many bytes are there, as the caller promises, and no more than fit.
    unsafe { given.cast::<u8>().copy_to_nonoverlapping(known.as_mut_ptr().cast(), size) };
    // SAFETY: zeroes are valid in all fields, and what C wrote to them is.
    Ok(unsafe { known.assume_init() })
}

/// Fills in the fields that the caller knows, but for its size.
///
/// # Safety
/// `into` points to as many bytes as its size says, which can be written.
pub(crate) unsafe fn write<T: SizedStruct>(into: *mut T, value: &T) -> Result<(), Status> {
    // SAFETY: as the caller promises.
    let size = unsafe { size_of_given(into) }?;
    let first = size_of::<usize>();
    let value = std::ptr::from_ref(value).cast::<u8>();
    // SAFETY: so many bytes can be written, as the caller promises, and no more than `value` has.
    unsafe { value.add(first).copy_to_nonoverlapping(into.cast::<u8>().add(first), size - first) };
    Ok(())
}
