use super::*;

fn parse(text: &str) -> Result<Dsn, ParseDsnError> {
    text.parse()
}

#[test]
fn a_dsn_is_parsed_and_formatted() {
    let dsn = parse("https://public:secret@Sentry.Example.com:8443/behind/a/proxy/42/").unwrap();
    assert_eq!((dsn.public_key(), dsn.secret_key()), ("public", Some("secret")));
    assert_eq!((dsn.host(), dsn.port()), ("sentry.example.com", 8443));
    assert_eq!((dsn.path(), dsn.project_id().value()), ("/behind/a/proxy/", "42"));
    assert_eq!(dsn.envelope_api_url().as_str(), "https://sentry.example.com:8443/behind/a/proxy/api/42/envelope/");
    assert_eq!(dsn.to_string(), "https://public:secret@sentry.example.com:8443/behind/a/proxy/42");
    assert_eq!(parse(&dsn.to_string()).unwrap(), dsn);
    assert_eq!(parse("https://key:@host/42").unwrap().to_string(), "https://key@host/42");
    let shown = format!("{dsn:?}");
    assert!(!shown.contains("public") && !shown.contains("secret"), "{shown}");
}

#[test]
fn the_schemes_default_port_is_omitted() {
    for (text, url) in [
        ("https://key@o1.ingest.example.com/42", "https://o1.ingest.example.com/api/42/envelope/"),
        ("HTTPS://key:@host:443/42", "https://host/api/42/envelope/"),
        ("http://key@host:443/42?a=b#c", "http://host:443/api/42/envelope/"),
        ("http://key@127.0.0.1:80//42", "http://127.0.0.1/api/42/envelope/"),
        ("  http://key@[::1]:9000/p/42\n", "http://[::1]:9000/p/api/42/envelope/"),
        ("https://key@[2001:db8::1]/23%21", "https://[2001:db8::1]/api/23%21/envelope/"),
    ] {
        let dsn = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!((dsn.envelope_api_url().as_str(), dsn.secret_key()), (url, None), "{text}");
        assert_eq!(dsn.port(), if text.contains("443") || url.starts_with("https") { 443 } else { dsn.port() });
    }
}

#[test]
fn an_invalid_dsn_is_rejected() {
    for text in [
        "",
        "key@host/42",
        "ftp://key@host/42",
        "https://host/42",
        "https://@host/42",
        "https://:secret@host/42",
        "https://a key@host/42",
        "https://key\n@host/42",
        // Sentry's own SDK accepts these two (with `%40`) and port 0; they are always mistakes.
        "https://key@project@host/42",
        "https://key:secret@@host/42",
        "https://\"key\"@host/42",
        "https://key@/42",
        "https://key@a b/42",
        "https://key@::1/42",
        "https://key@[::1/42",
        "https://key@host:port/42",
        "https://key@host:+80/42",
        "https://key@host:65536/42",
        "https://key@host:0/42",
        "https://key@host:000/42",
        "https://key@host",
        "https://key@host/",
        "https://key@host/?42",
        "https://key@host/4 2",
        "https://key@host/4\t2",
    ] {
        let error = parse(text).map(|dsn| dsn.to_string()).expect_err(text).to_string();
        assert!(error.ends_with("; expected https://KEY@HOST/PROJECT"), "{text}: {error}");
        assert!(!error.contains("secret"), "{error}");
    }
}
