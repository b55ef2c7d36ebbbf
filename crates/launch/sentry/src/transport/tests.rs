use super::*;

#[test]
fn secrets_are_not_shown() {
    let dsn: Dsn = "https://public:verysecret@o1.ingest.example.com/prefix/42".parse().unwrap();
    let transport = HttpTransport::new(&dsn, &TransportOptions::default()).unwrap();
    let auth = auth(&dsn, "client/1");
    assert!(auth.contains("sentry_key=public") && auth.contains("sentry_secret=verysecret"));
    assert!(!auth.contains("timestamp"));
    let shown = format!("{transport:?} {}", project(&dsn));
    assert!(shown.contains("https://o1.ingest.example.com/prefix/api/42/envelope/"), "{shown}");
    assert!(!shown.contains("secret") && !shown.contains("public"), "{shown}");
    let proxy = TransportOptions { proxy: Some("sock://me:hunter2@".into()), ..TransportOptions::default() };
    let error = HttpTransport::new(&dsn, &proxy).unwrap_err().to_string();
    assert!(!error.contains("hunter2"), "{error}");
}

#[test]
fn without_a_connection_nothing_leaves() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    // RFC 6761 guarantees that this name never exists.
    for host in ["no-such-host.invalid".to_owned(), nobody.to_string()] {
        let dsn: Dsn = format!("http://public@{host}/42").parse().unwrap();
        let transport = HttpTransport::new(&dsn, &TransportOptions::default()).unwrap();
        let error = transport.send(b"{}").unwrap_err();
        assert!(matches!(error, SendError::Offline(_)), "{host}: {error:?}");
    }
}

#[test]
fn a_shared_transport_calls_the_inner_one() {
    let dsn: Dsn = "http://public@no-such-host.invalid/42".parse().unwrap();
    let shared: std::sync::Arc<dyn Transport> =
        std::sync::Arc::new(HttpTransport::new(&dsn, &TransportOptions::default()).unwrap());
    let mut left = false;
    let noted = shared.send_noting(b"{}", &mut || {
        left = true;
        Ok(())
    });
    assert!(matches!(noted, Err(SendError::Offline(_))), "{noted:?}");
    assert!(!left, "nothing left without a connection");
}
