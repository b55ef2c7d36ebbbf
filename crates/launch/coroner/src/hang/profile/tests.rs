use std::sync::mpsc;

use super::Sampler;
use crate::backtrace::thread_id;

#[test]
fn a_sample_of_a_thread_that_continued_is_discarded() {
    let (sender, receiver) = mpsc::channel();
    let (end, is_ended) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        sender.send(thread_id()).unwrap();
        let _ = is_ended.recv();
    });
    let mut sampler = Sampler::new(receiver.recv().unwrap());
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
fn a_restarted_call_keeps_its_name() {
    let (sleeps, restarts) = (Some(libc::SYS_clock_nanosleep), Some(libc::SYS_restart_syscall));
    let mut waits_in = super::WaitsIn::default();
    let reported = [restarts, sleeps, restarts, restarts, None, restarts];
    let wanted = [None, sleeps, sleeps, sleeps, None, None];
    assert_eq!(reported.map(|call| waits_in.resolve(call)), wanted);
}
