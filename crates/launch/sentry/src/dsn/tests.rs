use super::*;

fn parse(text: &str) -> Result<Dsn, ParseDsnError> {
    text.parse()
}

#[test]
fn a_dsn_is_parsed_and_formatted() {
    let dsn = parse("https://public:secret@Sentry.Example.com:8443/behind/a/proxy/42/").unwrap();
    assert_eq!((dsn.public_key(), dsn.secret_key()), ("public", Some("secret")));
    assert_eq!((dsn.host(), dsn.port()), ("sentry.example.com", 8443));
    assert_eq!((dsn.path(), dsn.project_id()), ("/behind/a/proxy/", "42"));
    assert_eq!(dsn.envelope_url(), "https://sentry.example.com:8443/behind/a/proxy/api/42/envelope/");
    assert_eq!(dsn.to_string(), "https://public:secret@sentry.example.com:8443/behind/a/proxy/42");
    assert_eq!(parse(&dsn.to_string()).unwrap(), dsn);
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
        assert_eq!((dsn.envelope_url().as_str(), dsn.secret_key()), (url, None), "{text}");
        assert_eq!(dsn.port(), if text.contains("443") || url.starts_with("https") { 443 } else { dsn.port() });
    }
}

#[test]
fn the_sentry_crate_parses_a_dsn_the_same_way() {
    for text in [
        "https://public:secret@Sentry.Example.com:8443/behind/a/proxy/42/",
        "https://key@o1.ingest.example.com/42",
        "http://key@host:443/42",
        "http://key@127.0.0.1:80/42",
        "http://key@[::1]:9000/p/42",
        "https://key:@host/42",
    ] {
        let (own, theirs) = (parse(text).unwrap(), text.parse::<sentry_types::Dsn>().unwrap());
        let parts = (own.public_key(), own.secret_key(), own.host(), own.port(), own.path(), own.project_id());
        let of_theirs = (theirs.public_key(), theirs.secret_key(), theirs.host(), theirs.port(), theirs.path());
        assert_eq!(
            parts,
            (of_theirs.0, of_theirs.1, of_theirs.2, of_theirs.3, of_theirs.4, theirs.project_id().value()),
            "{text}"
        );
        assert_eq!(own.envelope_url(), theirs.envelope_api_url().as_str(), "{text}");
    }
    for text in
        ["", "key@host/42", "ftp://key@host/42", "https://host/42", "https://key@host", "https://key@host:65536/42"]
    {
        assert!(parse(text).is_err() && text.parse::<sentry_types::Dsn>().is_err(), "{text}");
    }
}

#[test]
fn an_invalid_dsn_is_rejected_with_the_reason() {
    for (text, error) in [
        ("", ParseDsnError::Scheme),
        ("key@host/42", ParseDsnError::Scheme),
        ("ftp://key@host/42", ParseDsnError::Scheme),
        ("https://host/42", ParseDsnError::Key),
        ("https://@host/42", ParseDsnError::Key),
        ("https://:secret@host/42", ParseDsnError::Key),
        ("https://a key@host/42", ParseDsnError::Key),
        ("https://key\n@host/42", ParseDsnError::Key),
        // Sentry's own SDK accepts these two (with `%40`) and port 0; they are always mistakes.
        ("https://key@project@host/42", ParseDsnError::Key),
        ("https://key:secret@@host/42", ParseDsnError::Key),
        ("https://key@/42", ParseDsnError::Host),
        ("https://key@b\u{fc}cher.example/42", ParseDsnError::Host),
        ("https://key@a b/42", ParseDsnError::Host),
        ("https://key@::1/42", ParseDsnError::Host),
        ("https://key@[::1/42", ParseDsnError::Host),
        ("https://key@host:port/42", ParseDsnError::Port),
        ("https://key@host:+80/42", ParseDsnError::Port),
        ("https://key@host:65536/42", ParseDsnError::Port),
        ("https://key@host:0/42", ParseDsnError::Port),
        ("https://key@host:000/42", ParseDsnError::Port),
        ("https://key@host", ParseDsnError::Project),
        ("https://key@host/", ParseDsnError::Project),
        ("https://key@host/?42", ParseDsnError::Project),
        ("https://key@host/4 2", ParseDsnError::Project),
    ] {
        assert_eq!(parse(text).map(|dsn| dsn.to_string()), Err(error), "{text}");
    }
}
