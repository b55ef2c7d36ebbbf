use std::path::Path;

use super::*;

const URL: &str = "https://example.com/42";

fn client(url: &str, options: &TransportOptions) -> Result<HttpClient, TransportError> {
    HttpClient::new(url, Vec::new(), "test/1", true, options)
}

#[test]
fn the_environments_proxy_depends_on_the_scheme() {
    let found = |scheme: &str, variables: &[(&str, &str)]| {
        let variable =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        let url = Url::parse(&format!("{scheme}://example.com/42")).unwrap();
        let proxy = proxy_of_environment(&url, variable);
        proxy.map(|proxy| proxy.host_and_port())
    };
    let both = [("HTTPS_PROXY", "http://me:secret@tls:3128"), ("http_proxy", "plain:8080")];
    assert_eq!(found("https", &both).as_deref(), Some("tls:3128"));
    assert_eq!(found("http", &both).as_deref(), Some("plain:8080"));
    assert_eq!(found("http", &both[..1]), None, "a proxy for TLS is none for other servers");
    assert_eq!(found("http", &[("HTTP_PROXY", "http://from-a-request")]), None);
    assert_eq!(found("https", &[("ALL_PROXY", "http://all")]).as_deref(), Some("all:80"));
    assert_eq!(found("https", &[both[0], ("NO_PROXY", "localhost, example.com")]), None);
}

#[test]
fn no_proxy_is_interpreted_as_by_other_programs() {
    let reached = |no_proxy: &str, host: &str| {
        let variable = |name: &str| match name {
            "ALL_PROXY" => Some("proxy:3128".to_owned()),
            "NO_PROXY" => Some(no_proxy.to_owned()),
            _ => None,
        };
        proxy_of_environment(&Url::parse(&format!("https://{host}/api")).unwrap(), variable).is_none()
    };
    for (no_proxy, host) in [
        ("corp.example", "sentry.corp.example"),
        ("corp.example", "CORP.example."),
        (".corp.example", "corp.example"),
        ("*.corp.example", "sentry.corp.example"),
        ("localhost 127.0.0.1", "127.0.0.1:9000"),
        ("sentry.example:9000", "sentry.example:9000"),
        ("10.0.0.0/8", "10.1.2.3"),
        ("0.0.0.0/0", "10.1.2.3"),
        ("::1", "[::1]:9000"),
        ("[::1]", "[::1]"),
        ("fd00::/8", "[fd12::1]"),
        ("a.example,*", "b.example"),
    ] {
        assert!(reached(no_proxy, host), "NO_PROXY={no_proxy} {host}");
    }
    for (no_proxy, host) in [
        ("corp.example", "notcorp.example"),
        ("corp.example", "corp.example.other"),
        (",.,", "corp.example"),
        ("10.0.0.0/8", "11.1.2.3"),
        ("10.0.0.0/33", "10.1.2.3"),
        ("10.0.0.1/", "10.0.0.1"),
        ("::/0", "10.0.0.1"),
        ("0.0.0.1", "10.0.0.1"),
        ("8", "10.0.0.8"),
    ] {
        assert!(!reached(no_proxy, host), "NO_PROXY={no_proxy} {host}");
    }
}

#[test]
fn a_file_without_certificates_is_an_error() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "not a certificate").unwrap();
    for path in [file.path(), Path::new("/nonexistent/ca.pem")] {
        let options = TransportOptions { ca_file: Some(path.to_owned()), ..TransportOptions::default() };
        let error = client(URL, &options).unwrap_err().to_string();
        assert!(error.contains(path.to_str().unwrap()), "{error}");
    }
}

#[test]
fn an_invalid_server_url_is_rejected() {
    for url in ["", "collector:4318", "/v1/logs", "ftp://collector/", "grpc://me:hunter2@collector:4317", "http://"] {
        let error = client(url, &TransportOptions::default()).unwrap_err();
        assert!(matches!(error, TransportError::Url(_)), "{url}: {error:?}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
    let shown = format!("{:?}", client("https://me:hunter2@example.com/", &TransportOptions::default()).unwrap());
    assert!(shown.contains("example.com") && !shown.contains("hunter2"), "{shown}");
}

#[test]
fn a_header_value_cannot_start_another_header() {
    for (name, value) in [("Api-Key", "a\r\nHost: other"), ("Api\r\nKey", "a"), ("", "a")] {
        let headers = vec![(name.to_owned(), value.to_owned())];
        let error = HttpClient::new(URL, headers, "test/1", true, &TransportOptions::default()).unwrap_err();
        assert!(matches!(error, TransportError::Header(_)), "{error:?}");
        assert!(!error.to_string().contains("other"), "{error}");
    }
}
