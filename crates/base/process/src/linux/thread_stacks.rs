//! Alternate signal stacks for existing threads, and for those that are created later.

use super::alternate_stack::{least_size, new_stack};
#[cfg(interpose)]
use super::pthread_create;
use super::stop_the_world::ThreadStopper;
use super::threads::{TaskDirectory, Tid, this_thread};
use crate::files::{map_untouched, unmap};

/// Sets whether threads that are created from now on get an alternate stack.
///
/// Works only if [`interposes`] returns true.
pub fn attach_new_threads(wants: bool) {
    #[cfg(interpose)]
    pthread_create::attach_new_threads(wants);
    #[cfg(not(interpose))]
    let _ = wants;
}

/// Sets a function that is called before each thread is created, by the creating thread. It may
/// create threads itself.
///
/// Works only if [`interposes`] returns true.
pub fn call_before_creation(function: Option<extern "C" fn()>) {
    #[cfg(interpose)]
    pthread_create::call_before_creation(function);
    #[cfg(not(interpose))]
    let _ = function;
}

/// Whether threads that are created from now on get an alternate stack automatically.
pub fn interposes() -> bool {
    #[cfg(interpose)]
    return pthread_create::is_first();
    #[cfg(not(interpose))]
    return cfg!(target_os = "android");
}

/// Maximum time for a thread to answer, in nanoseconds.
///
/// A thread that doesn't answer (it blocks the signal) gets no stack.
const ANSWER_NS: u64 = 2_000_000;

/// Gives an alternate stack to each thread of this process that has none, through its context.
///
/// The stacks of these threads are not freed when the threads exit.
pub fn attach_threads(stopper: &ThreadStopper, tasks: &TaskDirectory) {
    if stopper.signal() == 0 || tasks.had_one_thread() {
        return;
    }
    // Threads that are created meanwhile get theirs by `pthread_create`.
    let Ok(room) = tasks.count() else { return };
    let Ok(list) = map_untouched(room * size_of::<Tid>()) else { return };
    // SAFETY: a fresh, zeroed mapping of that size.
    let tids = unsafe { core::slice::from_raw_parts_mut(list as *mut Tid, room) };
    let (me, mut places) = (this_thread(), tids.iter_mut());
    tasks.list(&mut |tid| {
        if tid != me
            && let Some(place) = places.next()
        {
            *place = tid;
        }
    });
    attach_each(stopper, tids.iter().copied().take_while(|tid| *tid != 0));
    // SAFETY: ours alone, and no longer used.
    unsafe { unmap(list, room * size_of::<Tid>()) };
}

fn attach_each(stopper: &ThreadStopper, tids: impl Iterator<Item = Tid>) {
    for tid in tids {
        let Ok(stack) = new_stack() else { return };
        let wanted = stack.as_signal_stack();
        let least = least_size();
        let mut taken = false;
        if let Ok(mut interrupted) = stopper.interrupt(tid, ANSWER_NS) {
            let now = interrupted.context_mut().alternate_stack();
            if now.flags & libc::SS_DISABLE != 0 || now.size < least {
                *now = wanted;
                taken = true;
            }
        }
        if !taken {
            stack.unmap();
        }
    }
}
