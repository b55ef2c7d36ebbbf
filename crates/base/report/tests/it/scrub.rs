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
        ("PGPASSWORD=x password=y", "PGPASSWORD=[Filtered] password=[Filtered]"),
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

/// Measures the rules on texts with a secret, which is the second one of each pair, and without.
#[test]
fn most_secrets_are_hidden_and_hardly_anything_else() {
    const WITH: &[(&str, &str)] = &[
        (r#"DB_PASSWORD=hunter2"#, r#"hunter2"#),
        (r#"export PGPASSWORD=s3cretpg"#, r#"s3cretpg"#),
        (r#"MYSQL_PWD=toor123 mysqldump shop"#, r#"toor123"#),
        (r#"AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMIK7MDENGbPxRfiCYzz"#, r#"wJalrXUtnFEMIK7MDENGbPxRfiCYzz"#),
        (r#"aws_session_token = FwoGZXIvYXdzEBYaD"#, r#"FwoGZXIvYXdzEBYaD"#),
        (r#"{"aws_secret_access_key": "wJalrXUtnFEMI"}"#, r#"wJalrXUtnFEMI"#),
        (r#"{"jwt_secret":"correct horse"}"#, r#"correct horse"#),
        (r#"{"stripe_api_key":"abcdef"}"#, r#"abcdef"#),
        (r#"jwtSecret: 'battery staple'"#, r#"battery staple"#),
        (r#"passphrase="correct horse battery staple""#, r#"correct horse battery staple"#),
        (r#"ssh: Passphrase: "open sesame""#, r#"open sesame"#),
        (r#"X-Auth-Token: 8f3cabcd"#, r#"8f3cabcd"#),
        (r#"x-api-key: live1234"#, r#"live1234"#),
        (r#"X-Vault-Token: abcdefgh"#, r#"abcdefgh"#),
        (r#"X-Amz-Security-Token: IQoJb3JpZ2luX2Vj"#, r#"IQoJb3JpZ2luX2Vj"#),
        (r#"X-CSRF-Token: f00dfeed"#, r#"f00dfeed"#),
        (r#"PRIVATE-TOKEN: glabc-123456"#, r#"glabc-123456"#),
        (r#"Ocp-Apim-Subscription-Key: 0123456789abcdef"#, r#"0123456789abcdef"#),
        (r#"Authorization: Token 0123abcd"#, r#"0123abcd"#),
        (r#"Authorization: Basic YWRhOmxvdmU="#, r#"YWRhOmxvdmU="#),
        (r#"proxy-authorization: Negotiate YIIabc"#, r#"YIIabc"#),
        (r#"Authorization: 0123456789abcdef"#, r#"0123456789abcdef"#),
        (r#"Cookie: PHPSESSID=298zf09hf012fh2; theme=dark"#, r#"298zf09hf012fh2"#),
        (r#"set-cookie: sid=abc123; HttpOnly"#, r#"abc123"#),
        (r#"JSESSIONID=0A1B2C3D4E5F6071"#, r#"0A1B2C3D4E5F6071"#),
        (r#"connect.sid=s%3Aabcdef"#, r#"s%3Aabcdef"#),
        (r#"sessionid=38afes7a8"#, r#"38afes7a8"#),
        (r#"SECRET_KEY_BASE=deadbeefdeadbeef"#, r#"deadbeefdeadbeef"#),
        (r#"spring.datasource.password=tiger01"#, r#"tiger01"#),
        (r#"spring.datasource.password: tiger"#, r#"tiger"#),
        (r#"client_secret=GOCSPX"#, r#"GOCSPX"#),
        (r#"{"clientSecret": "GOCSPX"}"#, r#"GOCSPX"#),
        (r#"{'password': 'hunter2'}"#, r#"hunter2"#),
        (r#"{"password" => "hunter2"}"#, r#"hunter2"#),
        (r#":password=>"hunter2""#, r#"hunter2"#),
        (r#"Config { user: "ada", password: "lovelace" }"#, r#"lovelace"#),
        (r#"Config { token: Some("lovelace") }"#, r#"lovelace"#),
        (r#"{Password:hunter2 User:ada}"#, r#"hunter2"#),
        (r#"<password>hunter2</password>"#, r#"hunter2"#),
        (r#"<apiKey>abcdef</apiKey>"#, r#"abcdef"#),
        (r#"<add key="DbPassword" value="hunter two" />"#, r#"hunter two"#),
        (r#"{"name": "DB_PASSWORD", "value": "hunter2"}"#, r#"hunter2"#),
        (r#"('X-Auth-Token', 'abcdef0123')"#, r#"abcdef0123"#),
        (r#"--password hunter2"#, r#"hunter2"#),
        (r#"--password=hunter2"#, r#"hunter2"#),
        (r#"mysql --user=root --password=toor shop"#, r#"toor"#),
        (r#"--api-key abcdef"#, r#"abcdef"#),
        (r#"--auth-token=abcdef"#, r#"abcdef"#),
        (r#"SMTP_PASS=letmein"#, r#"letmein"#),
        (r#"ftp_pw=letmein"#, r#"letmein"#),
        (r#"user=ada pass=l3tmein"#, r#"l3tmein"#),
        (r#"login pwd=letmein"#, r#"letmein"#),
        (r#"Server=db;User Id=sa;Password=Pa55w0rd;"#, r#"Pa55w0rd"#),
        (r#"Server=db;Uid=sa;Pwd=letmein;"#, r#"letmein"#),
        (r#"AccountName=shop;AccountKey=abc+def/ghi==;EndpointSuffix=x"#, r#"abc+def/ghi"#),
        (r#"SharedAccessKey=QWxhZGRpbjpvcGVu="#, r#"QWxhZGRpbjpvcGVu"#),
        (r#"https://shop.blob.example/f?sv=2020&sig=QWxhZGRpbg%3D&se=1"#, r#"QWxhZGRpbg"#),
        (r#"postgres://ada:lovelace@db/shop"#, r#"lovelace"#),
        (r#"can't connect to redis://:lovelace@cache:6379/0"#, r#"lovelace"#),
        (r#"amqp://guest:guest@mq:5672"#, r#"guest:guest"#),
        (r#"ada:lovelace@tcp(db:3306)/shop"#, r#"lovelace"#),
        (r#"git clone https://oauth2:glpass@git.example/x.git"#, r#"glpass"#),
        (r#"GET /reset?token=abcdef HTTP/1.1"#, r#"abcdef"#),
        (r#"GET /cb?state=1&id_token=abc.def"#, r#"abc.def"#),
        (r#"GET /maps?key=AbCdEfGhIjKlMnOpQrSt1234"#, r#"AbCdEfGhIjKlMnOpQrSt1234"#),
        (r#"GET /x?api_key=abcdef&page=1"#, r#"abcdef"#),
        (r#"GET /x?access_token=abcdef#top"#, r#"abcdef"#),
        (r#"?password=hunter2&x=1"#, r#"hunter2"#),
        (r#"invalid token: eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcDEF"#, r#"eyJhbGci"#),
        (r#"Bearer 0123456789abcdef0123"#, r#"0123456789abcdef0123"#),
        (r#"sent "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==""#, r#"QWxhZGRpbjpvcGVuIHNlc2FtZQ"#),
        (r#"ghp_0123456789abcdefghijABCDEFGHIJ012345"#, r#"ghp_0123"#),
        (r#"github_pat_11ABCDEFG0abcdefghijkl_ABCDEFGHIJKLMNOPQRSTUVWXYZ"#, r#"github_pat_11"#),
        (r#"glpat-abcdefghij0123456789"#, r#"glpat-abc"#),
        (r#"xoxb-123456789012-123456789012-abcdefABCDEF"#, r#"xoxb-123"#),
        (r#"AKIAIOSFODNN7ABCDEFG was rejected"#, r#"AKIAIOSF"#),
        (r#"AIzaSyA0123456789abcdefghijklmnopqrstuv"#, r#"AIzaSyA"#),
        (r#"sk_live_0123456789abcdefABCDEF"#, r#"sk_live_01"#),
        (r#"rk_test_0123456789abcdefABCDEF"#, r#"rk_test_01"#),
        (r#"sk-proj-0123456789abcdef0123456789abcdef"#, r#"sk-proj-01"#),
        (r#"SG.0123456789abcdefABCDEF.0123456789abcdefABCDEF012"#, r#"SG.0123"#),
        (r#"npm_0123456789abcdefghijABCDEFGHIJ01234567"#, r#"npm_0123"#),
        (r#"hf_abcdefghijklmnopqrstuvwxyzABCDEFGH"#, r#"hf_abc"#),
        (r#"dop_v1_0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"#, r#"dop_v1_01"#),
        (r#"shpat_0123456789abcdef0123456789abcdef"#, r#"shpat_01"#),
        (r#"https://hooks.slack.com/services/T000/B000/XXXXabcd"#, r#"B000/XXXXabcd"#),
        (r#"-----BEGIN RSA PRIVATE KEY-----MIIEabc-----END RSA PRIVATE KEY-----"#, r#"MIIEabc"#),
        (r#"-----BEGIN PGP PRIVATE KEY BLOCK-----lQOYabc"#, r#"lQOYabc"#),
        (r#"-----BEGIN OPENSSH PRIVATE KEY-----b3BlbnNz"#, r#"b3BlbnNz"#),
        (r#"password: hunter2"#, r#"hunter2"#),
        (r#"Password: P@ssword!"#, r#"P@ssword!"#),
        (r#"secret: 0123456789abcdef"#, r#"0123456789abcdef"#),
        (r#"token: 5f4dcc3b5aa765d61d8327deb882cf99"#, r#"5f4dcc3b"#),
        (r#"password = hunter2"#, r#"hunter2"#),
        (r#"db_password: hunter"#, r#"hunter"#),
        (r#"{\"password\":\"hunter2\"}"#, r#"hunter2"#),
        (r#"encryption_key=00112233445566778899"#, r#"00112233445566778899"#),
        (r#"private_key: abcdefgh"#, r#"abcdefgh"#),
        (r#"password2=hunter2"#, r#"hunter2"#),
        (r#"new_password=letmein"#, r#"letmein"#),
        (r#"otp=493021"#, r#"493021"#),
        (r#"{"credentials":"ada:lovelace"}"#, r#"ada:lovelace"#),
        (r#"csrf_token=abcdef"#, r#"abcdef"#),
        (r#"API key: 0a1b2c3d4e"#, r#"0a1b2c3d4e"#),
        (r#"the password is hunter2."#, r#"hunter2"#),
        (r#"login with password 'hunter2' failed"#, r#"hunter2"#),
        (r#"curl -u ada:lovelace https://example.com"#, r#"lovelace"#),
        (r#"password = letmein"#, r#"letmein"#),
    ];
    const WITHOUT: &[&str] = &[
        r#"password: wrong"#,
        r#"wrong password: too short"#,
        r#"Password: must contain a digit"#,
        r#"password = ?"#,
        r#"the password of ada expired"#,
        r#"passwordless=yes"#,
        r#"password_length=12"#,
        r#"password_reset_url=/reset"#,
        r#"password_file=/run/secrets/db"#,
        r#"password=${DB_PASSWORD}"#,
        r#"password=%s"#,
        r#"password: ********"#,
        r#"no password given"#,
        r#"invalid password: "must be at least 8 characters""#,
        r#"password for user ada is missing"#,
        r#"authentication failed: password: expired"#,
        r#"token 7 of 9"#,
        r#"token=7"#,
        r#"tokens=512"#,
        r#"max_tokens=4096"#,
        r#"token_count=5"#,
        r#"token_type=bearer"#,
        r#"unexpected token: `}` at line 3"#,
        r#"unexpected token: identifier"#,
        r#"Unexpected token < in JSON at position 0"#,
        r#"expected "token": it was "ident""#,
        r#"token: expired"#,
        r#"token=expired"#,
        r#"cancellation token is set"#,
        r#"invalid token: missing"#,
        r#"{"token": null}"#,
        r#"{"token": 5}"#,
        r#"secret: none"#,
        r#"the secret santa list is empty"#,
        r#"secretary=ada"#,
        r#"secret_name=db"#,
        r#"secret_version=3"#,
        r#"author=Ada"#,
        r#"authors: ada, bob"#,
        r#"auth=none"#,
        r#"auth=basic"#,
        r#"auth: ok"#,
        r#"auth_method=oauth"#,
        r#"auth_url=https://example.com/login"#,
        r#"authority: example.com"#,
        r#"authorization: denied for user ada"#,
        r#"the authorization failed"#,
        r#"Authorization required"#,
        r#"cookie: not found"#,
        r#"cookie_count=3"#,
        r#"cookies=12"#,
        r#"at src/cookie.rs:12"#,
        r#"session=12"#,
        r#"session=closed"#,
        r#"session_timeout=30"#,
        r#"session_count: 5"#,
        r#"session started in 20 ms"#,
        r#"key=value"#,
        r#"key=AKEY"#,
        r#"primary_key=42"#,
        r#"foreign key constraint failed"#,
        r#"keyboard=us"#,
        r#"monkey=banana"#,
        r#"key_id=17"#,
        r#"public_key=ssh-ed25519"#,
        r#"KeyError: 'name'"#,
        r#"cache key: user/17"#,
        r#"access key: pressed"#,
        r#"pass=3 fail=0"#,
        r#"pass: 12"#,
        r#"passed=12"#,
        r#"bypass=true"#,
        r#"bypass: enabled"#,
        r#"compass=north"#,
        r#"passenger=ada"#,
        r#"render pass: shadow"#,
        r#"pwd: /home/ada"#,
        r#"PWD=/home/ada/src"#,
        r#"cwd=/home/ada"#,
        r#"sid=none"#,
        r#"side=left"#,
        r#"sign=positive"#,
        r#"signature=ok"#,
        r#"signature: fn(u32) -> u32"#,
        r#"ticket=4711"#,
        r#"ticket: JIRA-17"#,
        r#"pin=17"#,
        r#"apikey=missing"#,
        r#"api_key is required"#,
        r#"https://example.com/ada@example.com"#,
        r#"mail ada@example.com"#,
        r#"https://example.com/search?tokens=7&key=name&code=404"#,
        r#"Bearer of bad news"#,
        r#"basic authentication is off"#,
        r#"sk-learn"#,
        r#"std::bad_alloc"#,
        r#"thread 'main' panicked at src/main.rs:3:5"#,
        r#"commit 5f4dcc3b5aa765d61d8327deb882cf99"#,
        r#"id=906d3598-5362-4d0b-8ffb-2b2a757db403"#,
        r#"-----BEGIN CERTIFICATE-----MIIB"#,
        r#"missing fields: 'password', 'email'"#,
        r#"the password is required"#,
        r#"password 'strong' was chosen"#,
        r#"API key: missing"#,
    ];
    assert!(WITH.len() >= 100 && WITHOUT.len() >= 100);
    let is_left = |(text, secret): &&(&str, &str)| hide_secrets("", text).is_none_or(|hidden| hidden.contains(secret));
    let left: Vec<_> = WITH.iter().filter(is_left).collect();
    let changed: Vec<_> = WITHOUT.iter().filter_map(|text| hide_secrets("", text)).collect();
    assert!(left.is_empty() && changed.is_empty(), "left: {left:#?}, changed: {changed:#?}");
}

#[test]
fn values_under_a_secrets_name_are_hidden() {
    for key in [
        "password",
        "DB_PASSWORD",
        "PGPASSWORD",
        "aws_secret_access_key",
        "jwt_secret",
        "jwtSecret",
        "stripe_api_key",
        "passphrase",
        "X-Auth-Token",
        "x_api_key",
        "credentials",
        "privateKey",
        "mysql_pwd",
        "csrftoken",
        "Set-Cookie",
        "refresh_token",
        "sessionid",
        "PHPSESSID",
        "secret.value",
        "password2",
    ] {
        assert_eq!(hide_secrets(key, "a word").as_deref(), Some("[Filtered]"), "{key}");
    }
    for key in ["author", "token_count", "max_tokens", "key", "secret_name", "passed", "session", "path", "monkey"] {
        assert_eq!(hide_secrets(key, "a word"), None, "{key}");
    }
    for (key, text) in [("token", "7"), ("secret", "none"), ("cookie", "missing"), ("password", "")] {
        assert_eq!(hide_secrets(key, text), None, "{key}");
    }
}
