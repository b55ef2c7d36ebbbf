use std::sync::mpsc;

use super::Sampler;
use crate::backtrace::thread_id;

#[test]
fn a_sample_of_a_thread_that_went_on_meanwhile_is_none() {
    let (say, said) = mpsc::channel();
    let (end, is_ended) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        say.send(thread_id()).unwrap();
        let _ = is_ended.recv();
    });
    let mut sampler = Sampler::new(said.recv().unwrap());
    assert!(!sampler.sample(|| false));
    assert!(sampler.samples == 0 && sampler.nodes.is_empty());
    sampler.next = sampler.began;
    assert!(sampler.sample(|| true));
    assert!(sampler.samples == 1 || sampler.failed == 1);
    drop(end);
    thread.join().unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn a_call_that_was_restarted_has_its_own_name() {
    let (sleeps, restarts) = (Some(libc::SYS_clock_nanosleep), Some(libc::SYS_restart_syscall));
    let mut waits_in = super::WaitsIn::default();
    let said = [restarts, sleeps, restarts, restarts, None, restarts];
    let wanted = [None, sleeps, sleeps, sleeps, None, None];
    assert_eq!(said.map(|call| waits_in.of(call)), wanted);
}
