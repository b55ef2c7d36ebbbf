//! Debug files from a local debuginfod server: they are downloaded once and cached, and so are
//! negative answers.

#![cfg(all(target_os = "linux", feature = "debuginfod"))]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use crate::common::fixture;
use coroner_symbols::{Debuginfod, FileKind, ImageKey, LookupAddress, Options, SymbolFile, Symbolizer};

/// Starts a server with one file; returns its URL and the requests it received.
fn serve(path: String, body: Vec<u8>) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let request = lines.next().unwrap().unwrap();
            while lines.next().is_some_and(|line| !line.unwrap().is_empty()) {}
            let target = request.split(' ').nth(1).unwrap().to_owned();
            let (status, body) = if target == path { ("200 OK", &body[..]) } else { ("404 Not Found", &b""[..]) };
            write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len()).unwrap();
            stream.write_all(body).unwrap();
            noted.lock().unwrap().push(target);
        }
    });
    (url, asked)
}

fn objcopy(arguments: &[&str], from: &Path, to: &Path) {
    assert!(Command::new("objcopy").args(arguments).args([from, to]).status().unwrap().success());
}

#[test]
fn files_and_negative_answers_are_cached() {
    let folder = tempfile::tempdir().unwrap();
    let (app, debug): (PathBuf, PathBuf) = (folder.path().join("app"), folder.path().join("debug"));
    objcopy(&["--only-keep-debug"], &fixture("cpp.elf"), &debug);
    objcopy(&["--strip-all"], &fixture("cpp.elf"), &app);
    let file = &SymbolFile::open(&app).unwrap()[0];
    let id = file.debug_id().cloned();
    let key = ImageKey {
        path: app.clone(),
        debug_id: id.clone(),
        kind: FileKind::Elf,
        arch: file.arch(),
        base_svma: 0,
        replaced: false,
    };
    let hex = id.unwrap().to_string();
    let (url, asked) = serve(format!("/buildid/{hex}/debuginfo"), std::fs::read(&debug).unwrap());
    std::fs::remove_file(debug).unwrap();

    let whole = &SymbolFile::open(&fixture("cpp.elf")).unwrap()[0];
    let deep = (0..0x4000)
        .find_map(|svma| whole.symbol(LookupAddress::of_instruction(svma)).filter(|symbol| symbol.0 == "_Z4deepi"))
        .unwrap();
    let deep = LookupAddress::of_instruction(deep.1 + 0x11);
    let cache = folder.path().join("cache");
    let name = |urls: &[&str], cache: &Path, key: &ImageKey| {
        let urls = urls.iter().map(ToString::to_string).collect();
        let debuginfod = Some(Debuginfod::new(urls, cache.to_owned()));
        let mut symbolizer = Symbolizer::new(Options { debug_roots: vec![], debuginfod, ..Options::default() });
        let lines = symbolizer.symbolicate(key, deep).iter().filter(|frame| frame.line.is_some()).count();
        let problems: Vec<String> = symbolizer.status(key).problems.iter().map(ToString::to_string).collect();
        (lines, problems)
    };
    for _ in 0..2 {
        let (lines, problems) = name(&[&url], &cache, &key);
        assert!(lines >= 2 && problems.is_empty(), "{problems:?}");
    }
    assert_eq!(asked.lock().unwrap().len(), 1, "the second lookup uses the cache");
    assert!(cache.join(&hex).join("debuginfo").is_file(), "the file is where elfutils and GDB look for it");

    // A file that the server does not have.
    let other: String = hex.chars().rev().collect();
    let other = ImageKey { debug_id: Some(other.parse().unwrap()), path: "/nowhere".into(), ..key.clone() };
    for _ in 0..2 {
        assert_eq!(name(&[&url], &cache, &other), (0, vec![]));
    }
    assert_eq!(asked.lock().unwrap().len(), 2, "not asked again");

    // An unreachable server results in a warning and is not cached; the next server is asked.
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let gone = format!("http://{gone}");
    let empty = folder.path().join("empty");
    let (lines, problems) = name(&[&gone], &empty, &key);
    assert!(lines == 0 && problems.len() == 1 && problems[0].contains(&gone), "{problems:?}");
    assert!(name(&[&gone, &url], &empty, &key).0 >= 2);
}

#[test]
fn a_server_that_never_answers_is_asked_once() {
    let folder = tempfile::tempdir().unwrap();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", server.local_addr().unwrap());
    let connections = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&connections);
    std::thread::spawn(move || server.incoming().for_each(|stream| kept.lock().unwrap().push(stream)));
    let problems = |id: u8| {
        let mut servers = Debuginfod::new(vec![url.clone()], folder.path().to_owned());
        servers.timeout = std::time::Duration::from_millis(200);
        let options = Options { debug_roots: vec![], debuginfod: Some(servers), ..Options::default() };
        let mut symbolizer = Symbolizer::new(options);
        let mut all = Vec::new();
        for image in 0..3 {
            let key = ImageKey {
                path: "/nowhere".into(),
                debug_id: Some(format!("{id:02x}{image:02x}2233445566778899aabbccddeeff00112233").parse().unwrap()),
                kind: FileKind::Elf,
                arch: coroner_symbols::Arch::X86_64,
                base_svma: 0,
                replaced: false,
            };
            all.extend(symbolizer.status(&key).problems.iter().map(ToString::to_string));
        }
        all
    };
    // One command asks once, whatever the number of images; the next one not at all.
    let first = problems(1);
    assert!(first.len() == 1 && first[0].contains(&url), "{first:?}");
    let second = problems(2);
    assert!(second.len() == 1 && second[0].contains("failed less than ten minutes ago"), "{second:?}");
    assert_eq!(connections.lock().unwrap().len(), 1);
}
