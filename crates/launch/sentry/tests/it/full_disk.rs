//! Sending while the disk is full. The process has a file size limit in place of a full disk.

use std::sync::{Arc, Mutex};

use coroner_report::model::{Crash, Header, Id, Report};
use coroner_sentry::envelope::{Envelope, item_type};
use coroner_sentry::transport::{Answer, SendError, Transport};
use coroner_sentry::{Client, Options};
use coroner_test_support::isolated;

/// Answers OK with limits that want to be noted, and remembers ids and how many envelopes had
/// counts.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<(Vec<String>, usize)>>);

impl Transport for Server {
    fn send(&self, envelope: &[u8]) -> Result<Answer, SendError> {
        let envelope = Envelope::parse(envelope).unwrap();
        let mut got = self.0.lock().unwrap();
        got.0.extend(envelope.event_id().map(ToOwned::to_owned));
        got.1 += envelope.items.iter().filter(|item| item.kind() == item_type::CLIENT_REPORT).count();
        Ok(Answer { status: 200, rate_limits: Some("60:attachment".to_owned()), ..Answer::default() })
    }
}

#[test]
fn on_a_full_disk_each_queued_event_is_sent_once() {
    isolated(concat!(module_path!(), "::on_a_full_disk_each_queued_event_is_sent_once"), || {
        const LONG: std::time::Duration = std::time::Duration::from_secs(30);
        let folder = tempfile::tempdir().unwrap();
        let server = Server::default();
        let options = Options {
            pause: std::time::Duration::ZERO,
            require_consent: true,
            ..Options::new("http://key@localhost/1".parse().unwrap())
        };
        let open = || Client::with_transport(options.clone(), folder.path(), Box::new(server.clone())).unwrap();
        let client = open();
        for event in 1..=5 {
            let header = Header { event_id: Id([event; 16]), ..Header::default() };
            client.capture(&Report { header, crash: Some(Crash::default()), ..Report::default() }).unwrap();
        }
        client.count_lost(3).unwrap();
        client.flush(LONG);
        client.outbox().set_consent(true).unwrap();
        // SAFETY: of this process alone: a file that grows beyond it is an error and no signal.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            let limit = libc::rlimit { rlim_cur: 16, rlim_max: libc::RLIM_INFINITY };
            assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit), 0);
        }
        let is_empty = client.flush(LONG);
        let counts = server.0.lock().unwrap().1;
        drop(client);
        // The next launch.
        open().flush(LONG);
        // SAFETY: as it was.
        unsafe {
            let limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
            assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit), 0);
        }
        let sent = server.0.lock().unwrap().0.clone();
        let wanted: Vec<String> = (1..=5).map(|event| Id([event; 16]).to_string()).collect();
        assert_eq!((sent, counts, is_empty), (wanted, 1, true));
    });
}
