use super::*;

#[test]
fn a_url_is_split_into_its_parts() {
    for (text, host, port, authority, target) in [
        ("https://example.com", "example.com", 443, "example.com", "/"),
        ("HTTP://example.com:8080/a/b?c=d#e", "example.com", 8080, "example.com:8080", "/a/b?c=d"),
        ("http://example.com?c=d", "example.com", 80, "example.com", "/?c=d"),
        ("https://me:p@ss@[::1]:9000/", "::1", 9000, "[::1]:9000", "/"),
        ("http://[fd00::1]/a@b", "fd00::1", 80, "[fd00::1]", "/a@b"),
        ("http://example.com:/", "example.com", 80, "example.com", "/"),
        ("https://example.com:443/ä b", "example.com", 443, "example.com", "/%C3%A4%20b"),
        ("http://bücher.example/", "xn--bcher-kva.example", 80, "xn--bcher-kva.example", "/"),
    ] {
        let url = Url::parse(text).unwrap();
        assert_eq!((url.host(), url.port(), url.authority(), url.target()), (host, port, authority, target), "{text}");
    }
    for text in [
        "example.com",
        "ftp://example.com",
        "http://",
        "http://me@",
        "http://:80",
        "http://a:b/",
        "http://a:65536/",
        "http://[::1/",
        "http://::1/",
        "http://a:80:80/",
        "http://a b/",
        "http://a/\r\nHost: b",
        "http:///a",
        "http:a",
        "http://a:0/",
    ] {
        assert!(Url::parse(text).is_none(), "{text}");
    }
}

#[test]
fn user_and_password_are_decoded_once() {
    let found = |url: &str| {
        let printed = Url::parse(url).unwrap().authorization()?;
        Some(String::from_utf8(BASE64_STANDARD.decode(printed.strip_prefix("Basic ").unwrap()).unwrap()).unwrap())
    };
    assert_eq!(found("http://example.com/"), None);
    assert_eq!(found("http://me@example.com/").as_deref(), Some("me:"));
    assert_eq!(found("http://me:a%40b%2540%zz+%4@example.com/").as_deref(), Some("me:a@b%40%zz+%4"));
}
