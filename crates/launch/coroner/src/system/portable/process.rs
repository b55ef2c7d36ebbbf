//! This process and its threads.

pub(crate) mod threads {
    /// A thread id; 0 on systems without thread ids.
    pub(crate) type Tid = u64;

    #[cfg(windows)]
    pub(crate) fn this_thread() -> Tid {
        #[link(name = "kernel32")]
        unsafe extern "system" {
            safe fn GetCurrentThreadId() -> u32;
        }
        GetCurrentThreadId().into()
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) fn this_thread() -> Tid {
        nix::unistd::gettid().as_raw() as Tid
    }

    #[cfg(target_os = "freebsd")]
    pub(crate) fn this_thread() -> Tid {
        nix::unistd::pthread_getthreadid_np().as_raw() as Tid
    }

    #[cfg(target_vendor = "apple")]
    pub(crate) fn this_thread() -> Tid {
        let mut number = 0;
        // SAFETY: thread 0 is the calling one, and one number is written.
        unsafe { libc::pthread_threadid_np(0, &raw mut number) };
        number
    }

    #[cfg(not(any(
        windows,
        target_os = "linux",
        target_os = "android",
        target_os = "freebsd",
        target_vendor = "apple"
    )))]
    pub(crate) fn this_thread() -> Tid {
        0
    }

    pub(crate) fn process_id() -> i32 {
        std::process::id() as i32
    }
}

pub(crate) mod memory_use {
    pub(crate) fn available() -> Option<u64> {
        None
    }
}
