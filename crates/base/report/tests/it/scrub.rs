//! Secrets are hidden in every text of a report, and nothing else is.

use coroner_report::model::{Annotation, Breadcrumb, Crash, Exception, Value, hide_secrets};
use coroner_report::{Report, RunFacts};

#[test]
fn certain_secrets_are_hidden() {
    let web = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcDEF-_123";
    for (text, hidden) in [
        ("https://ada:love%40@example.com/a@b?c=d@e", "https://[Filtered]@example.com/a@b?c=d@e"),
        ("two: ftp://u@h, 'git+ssh://x:y@z'", "two: ftp://[Filtered]@h, 'git+ssh://[Filtered]@z'"),
        ("> Authorization: Basic YWRhOmxvdmU=\n> Host: x", "> Authorization: [Filtered]\n> Host: x"),
        (
            "{\"proxy-authorization\": \"Digest a=b, c\", \"n\": 1}",
            "{\"proxy-authorization\": \"[Filtered]\", \"n\": 1}",
        ),
        ("{\\\"api_key\\\":\\\"abc\\\",\\\"n\\\":1}", "{\\\"api_key\\\":\\\"[Filtered]\\\",\\\"n\\\":1}"),
        (
            "{\"token\": \"a b\", \"session_token\":\"c\"}",
            "{\"token\": \"[Filtered]\", \"session_token\":\"[Filtered]\"}",
        ),
        ("POST /login?user=ada&password=love&x=1", "POST /login?user=ada&password=[Filtered]&x=1"),
        ("GET /feed?token=a.b%2F&page=2 'x?a=1&Token=z'", "GET /feed?token=[Filtered]&page=2 'x?a=1&Token=[Filtered]'"),
        (
            "https://b.example/o?X-Amz-Date=20261125&X-Amz-Signature=0f1e#top",
            "https://b.example/o?X-Amz-Date=20261125&X-Amz-Signature=[Filtered]#top",
        ),
        ("PGPASSWORD=x password=y", "PGPASSWORD=x password=[Filtered]"),
        ("Set-Cookie: id=1; Path=/\r\nX: y", "Set-Cookie: [Filtered]\r\nX: y"),
        (&format!("got {web}."), "got [Filtered]."),
        ("sent bearer 0123456789abcdef0123!", "sent bearer [Filtered]!"),
        ("ghp_0123456789abcdefghijABCDEFGHIJ012345 was it", "[Filtered] was it"),
        ("key=AKIAIOSFODNN7EXAMPLE", "key=[Filtered]"),
        (
            "-----BEGIN EC PRIVATE KEY-----\nMHc=\n-----END EC PRIVATE KEY-----\nrest",
            "-----BEGIN EC PRIVATE KEY-----[Filtered]-----END EC PRIVATE KEY-----\nrest",
        ),
        ("-----BEGIN PRIVATE KEY-----\nMHc", "-----BEGIN PRIVATE KEY-----[Filtered]"),
        ("ü https://ü:ö@ä.example ü", "ü https://[Filtered]@ä.example ü"),
    ] {
        assert_eq!(hide_secrets("", text).as_deref(), Some(hidden), "{text}");
        assert_eq!(hide_secrets("", hidden).unwrap_or(hidden.to_owned()), hidden, "twice");
    }
    for key in ["API-Key", "token", "Secret"] {
        assert_eq!(hide_secrets(key, "abc").as_deref(), Some("[Filtered]"), "{key}");
    }
}

#[test]
fn useful_text_is_not_hidden() {
    for text in [
        "",
        "https://example.com/ada@example.com",
        "mail ada@example.com",
        "wrong password: too short",
        "password = ?",
        "Bearer of bad news",
        "the authorization failed",
        "sk-learn",
        "eyJust.a.name",
        "at src/cookie.rs:12",
        "://",
        "-----BEGIN CERTIFICATE-----\nMIIB",
        "std::bad_alloc",
        "passwordless=yes",
        "token 7 of 9",
        "token=7",
        "expected \"token\": it was \"ident\"",
        "secret: none",
        "/search?tokens=7&key=name&code=404",
        "what?token",
        "://@x",
    ] {
        assert_eq!(hide_secrets("", text), None, "{text}");
    }
    assert_eq!(hide_secrets("password", ""), None);
    assert_eq!(hide_secrets("author", "Ada"), None);
}

#[test]
fn every_text_of_the_app_is_scrubbed() {
    let text = || "see http://a:b@c".to_owned();
    let map = || Value::Map(vec![(Value::from("list"), Value::Array(vec![Value::Text(text())]))]);
    let mut run = RunFacts { user: Some(map()), fingerprint: vec![text()], ..RunFacts::default() };
    run.tags.insert("tag".to_owned(), text());
    run.contexts.insert("context".to_owned(), map());
    run.extra.insert("extra".to_owned(), Value::Tag(1, Box::new(map())));
    run.breadcrumbs.push(Breadcrumb { message: Some(text()), data: Some(map()), ..Breadcrumb::default() });
    let exception = Exception { message: Some(text()), user_info: Some(text()), ..Default::default() };
    let annotation = Annotation { text: text(), ..Default::default() };
    let crash = Crash { message: Some(text()), ..Default::default() };
    let mut report = Report {
        crash: Some(crash),
        exceptions: vec![exception],
        annotations: vec![annotation],
        run: Some(run),
        ..Report::default()
    };
    report.scrub(&hide_secrets);
    let json = report.to_json();
    assert_eq!((json.matches("a:b").count(), json.matches("[Filtered]@c").count()), (0, 11), "{json}");
}
