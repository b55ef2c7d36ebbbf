//! Faults in child processes. The parent waits, prints how the child ended, and continues.

use crate::chain::{self, Step};

/// Runs a step in a child created by `fork`.
pub(crate) fn in_fork_child(step: Step) {
    // SAFETY: the child only runs the step, which ends it.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no child: {}", std::io::Error::last_os_error());
    if child == 0 {
        chain::here(step);
        // SAFETY: the child must not run the parent's exit handlers.
        unsafe { libc::_exit(3) };
    }
    wait_for(child);
}

/// Runs a step in a child that shares the parent's memory, while the parent is stopped.
///
/// The child has a separate stack. This is what `vfork` does and `posix_spawn` is built on, in a
/// form that a compiler can't break (a `vfork` returns twice).
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn in_vfork_child(step: Step) {
    in_child_of_same_memory(step, libc::CLONE_VFORK);
}

/// Runs a step in a child that shares memory and signal handlers with the running parent.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn in_sighand_child(step: Step) {
    in_child_of_same_memory(step, libc::CLONE_SIGHAND);
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn in_child_of_same_memory(step: Step, flags: libc::c_int) {
    extern "C" fn child(step: *mut libc::c_void) -> libc::c_int {
        // SAFETY: it points to the Step below, which lives until the parent continues.
        let step = unsafe { *step.cast::<Step>() };
        chain::here(step);
        3
    }

    let mut stack = vec![0_u128; 4096];
    let mut step = step;
    // SAFETY: the stack and the step outlive the child, because this function waits for it.
    let child = unsafe {
        libc::clone(
            child,
            stack.as_mut_ptr_range().end.cast(),
            libc::CLONE_VM | flags | libc::SIGCHLD,
            (&raw mut step).cast(),
        )
    };
    assert!(child >= 0, "no child: {}", std::io::Error::last_os_error());
    wait_for(child);
}

/// Waits for the child and prints `child ended by signal N` or `child exited with N`.
fn wait_for(child: libc::pid_t) {
    let mut status = 0;
    // SAFETY: the status is a local variable.
    while unsafe { libc::waitpid(child, &raw mut status, 0) } < 0 {
        let error = std::io::Error::last_os_error();
        assert_eq!(error.raw_os_error(), Some(libc::EINTR), "the child can't be waited for: {error}");
    }
    if libc::WIFSIGNALED(status) {
        println!("child ended by signal {}", libc::WTERMSIG(status));
    } else {
        println!("child exited with {}", libc::WEXITSTATUS(status));
    }
}
