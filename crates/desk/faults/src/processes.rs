//! Faults in child processes. The parent waits, prints how the child ended, and continues.

use nix::errno::Errno;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use crate::chain::{self, Step};

/// Runs a step in a child created by `fork`.
pub(crate) fn in_fork_child(step: Step) {
    // SAFETY: the child only runs the step, which ends it.
    match unsafe { fork() }.expect("a child") {
        ForkResult::Child => {
            chain::here(step);
            // SAFETY: the child must not run the parent's exit handlers.
            unsafe { libc::_exit(3) };
        }
        ForkResult::Parent { child } => wait_for(child),
    }
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
    // SAFETY: the stack and the step outlive the child, because this function waits for it. (nix's
    // `clone` takes only a closure, whose frames a report would name.)
    let child = unsafe {
        libc::clone(
            child,
            stack.as_mut_ptr_range().end.cast(),
            libc::CLONE_VM | flags | libc::SIGCHLD,
            (&raw mut step).cast(),
        )
    };
    assert!(child >= 0, "no child: {}", std::io::Error::last_os_error());
    wait_for(Pid::from_raw(child));
}

/// Waits for the child and prints `child ended by signal N` or `child exited with N`.
fn wait_for(child: Pid) {
    loop {
        match waitpid(child, None) {
            Err(Errno::EINTR) => {}
            Ok(WaitStatus::Signaled(_, signal, _)) => break println!("child ended by signal {}", signal as i32),
            Ok(WaitStatus::Exited(_, code)) => break println!("child exited with {code}"),
            other => panic!("the child can't be waited for: {other:?}"),
        }
    }
}
