use std::net::TcpListener;
use std::os::fd::AsRawFd as _;

use super::*;

#[test]
fn a_silent_address_leaves_time_for_the_next() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    // SAFETY: an open descriptor. Its backlog takes one connection, which nobody accepts; others
    // get no answer.
    assert_eq!(unsafe { libc::listen(silent.as_raw_fd(), 0) }, 0);
    let address = silent.local_addr().unwrap();
    let try_once = |_| TcpStream::connect_timeout(&address, Duration::from_millis(300)).ok();
    let taken: Vec<_> = (0..16).map_while(try_once).collect();
    assert!(taken.len() < 16, "it is not silent");
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let addresses = [address, address, server.local_addr().unwrap()];
    let deadline = Instant::now() + Duration::from_secs(6);
    let stream = connect(&addresses, deadline).unwrap();
    assert_eq!(stream.peer_addr().unwrap(), addresses[2]);
    let none = connect(&addresses[..2], Instant::now() + Duration::from_millis(300)).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::TimedOut);
}

#[test]
fn interim_answers_are_skipped_and_some_answers_have_no_body() {
    for (text, status, body) in [
        ("HTTP/1.1 103 Early\r\nLink: a\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\nok", 200, "ok"),
        // The connection stays open afterwards: waiting for a body would last until the deadline.
        ("HTTP/1.1 204 No Content\r\n\r\nof another answer", 204, ""),
    ] {
        let answer = read_answer(&mut text.as_bytes()).unwrap();
        assert_eq!((answer.status, &*answer.text()), (status, body), "{text:?}");
    }
}
