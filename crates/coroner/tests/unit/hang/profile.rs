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
