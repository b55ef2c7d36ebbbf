//! Reading directories (<sys/dirent.h>, the structure with 64-bit inodes).

use std::ffi::{CStr, c_char};

/// `struct dirent`.
#[repr(C)]
struct Entry {
    inode: u64,
    seek: u64,
    record: u16,
    length: u16,
    kind: u8,
    name: [c_char; 1024],
}

/// `readdir_r`: into the caller's structure; null at the end. Types of entries (DT_*) are the same.
extern "C" fn readdir_r(directory: *mut libc::DIR, entry: *mut Entry, result: *mut *mut Entry) -> i32 {
    // SAFETY: a stream of libc's; the program gave the addresses.
    unsafe {
        let errno = libc::__errno_location();
        *errno = 0;
        let linux = libc::readdir64(directory);
        if linux.is_null() {
            result.write(std::ptr::null_mut());
            return super::errno::to_darwin(std::mem::take(&mut *errno));
        }
        let name = CStr::from_ptr((&raw const (*linux).d_name).cast()).to_bytes_with_nul();
        (*entry).inode = (*linux).d_ino;
        (*entry).seek = (*linux).d_off as u64;
        (*entry).kind = (*linux).d_type;
        (*entry).length = name.len() as u16 - 1;
        // The header is 21 bytes; records are multiples of four.
        (*entry).record = ((21 + name.len() + 3) & !3) as u16;
        std::ptr::copy_nonoverlapping(name.as_ptr().cast::<c_char>(), (&raw mut (*entry).name).cast(), name.len());
        result.write(entry);
    }
    0
}

static mut SHARED: Entry = Entry { inode: 0, seek: 0, record: 0, length: 0, kind: 0, name: [0; 1024] };

/// `readdir`: its structure is shared by all streams here; not for programs that read two at once on two threads.
extern "C" fn readdir(directory: *mut libc::DIR) -> *mut Entry {
    let mut result = std::ptr::null_mut();
    let error = readdir_r(directory, &raw mut SHARED, &raw mut result);
    if error != 0 {
        super::errno::fail(error);
    }
    result
}

super::exports! {
    "opendir" => libc::opendir,
    "fdopendir" => libc::fdopendir,
    "closedir" => libc::closedir,
    "dirfd" => libc::dirfd,
    "rewinddir" => libc::rewinddir,
    "readdir_r" => readdir_r,
    "readdir" => readdir,
}
