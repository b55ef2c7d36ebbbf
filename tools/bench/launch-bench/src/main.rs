//! A small command-line tool with a crash reporter: `launch-bench FOLDER [crash|memory|sleep]`.
//!
//! A feature selects the reporter at build time, and it is set up as its own README describes:
//! `coroner`, `minidumper` (crash-handler with a server in a separate process, for which the first
//! line of `main` is needed), `sentry`, `human-panic`; without a feature there is none.
//!
//! It prints a word and exits; `crash` stores to address 0, `memory` prints its resident memory in
//! KiB and the process's own part of it (`Anonymous` of proc(5)), `sleep` takes two milliseconds,
//! like a short tool.

use std::path::Path;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let (folder, what) = match &arguments[..] {
        [_, folder] => (folder, ""),
        [_, folder, what] => (folder, what.as_str()),
        _ => {
            eprintln!("usage: launch-bench FOLDER [crash|memory|sleep]");
            std::process::exit(2);
        }
    };
    let _guard = reporter::install(Path::new(folder), what);
    match what {
        "crash" => {
            // SAFETY: none is claimed; it crashes.
            unsafe { std::ptr::null_mut::<u32>().write_volatile(1) };
        }
        "memory" => {
            let summary = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
            let of = |name: &str| -> u64 {
                let value = summary.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
                value.trim().trim_end_matches(" kB").parse().unwrap_or_default()
            };
            println!("{} {}", of("Rss:"), of("Anonymous:"));
        }
        "sleep" => std::thread::sleep(std::time::Duration::from_millis(2)),
        _ => println!("done"),
    }
}

#[cfg(feature = "coroner")]
mod reporter {
    use std::path::Path;

    pub(crate) fn install(folder: &Path, _what: &str) -> coroner::Coroner {
        let config = coroner::Config::new("com.example.tool").version("1.0").store_dir(folder.join("store"));
        coroner::install(config).expect("Coroner installs")
    }
}

#[cfg(feature = "sentry")]
mod reporter {
    use std::path::Path;

    pub(crate) fn install(_folder: &Path, _what: &str) -> sentry::ClientInitGuard {
        // Nothing listens on this port, and nothing should be sent.
        let options = sentry::ClientOptions::new().release("tool@1.0");
        sentry::init(("http://key@127.0.0.1:9/1", options))
    }
}

#[cfg(feature = "human-panic")]
mod reporter {
    use std::path::Path;

    pub(crate) fn install(_folder: &Path, _what: &str) {
        human_panic::setup_panic!();
    }
}

#[cfg(feature = "minidumper")]
mod reporter {
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    pub(crate) fn install(folder: &Path, what: &str) -> Option<crash_handler::CrashHandler> {
        const SOCKET: &str = "LAUNCH_BENCH_SOCKET";
        if what == "server" {
            serve(Path::new(&std::env::var_os(SOCKET).expect("the client names it")), folder);
        }
        let name = folder.join(format!("socket-{}", std::process::id()));
        // As in minidumper's example: starts the program again as a server, and connects to it when
        // it is ready.
        let program = std::env::current_exe().expect("the program has a path");
        std::process::Command::new(program)
            .arg(folder)
            .arg("server")
            .env(SOCKET, &name)
            .spawn()
            .expect("the server starts");
        let client = loop {
            match minidumper::Client::with_name(minidumper::SocketName::from(name.as_path())) {
                Ok(client) => break client,
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        // SAFETY: it does the same as minidumper's example.
        let handler = crash_handler::CrashHandler::attach(unsafe {
            crash_handler::make_crash_event(move |context: &crash_handler::CrashContext| {
                crash_handler::CrashEventResult::Handled(client.request_dump(context).is_ok())
            })
        });
        Some(handler.expect("crash-handler attaches"))
    }

    fn serve(name: &Path, folder: &Path) -> ! {
        struct Handler(PathBuf);

        impl minidumper::ServerHandler for Handler {
            fn create_minidump_file(&self) -> std::io::Result<(std::fs::File, PathBuf)> {
                let path = self.0.join("crash.dmp");
                Ok((std::fs::File::create(&path)?, path))
            }

            fn on_minidump_created(
                &self,
                _result: Result<minidumper::MinidumpBinary, minidumper::Error>,
            ) -> minidumper::LoopAction {
                minidumper::LoopAction::Exit
            }

            fn on_message(&self, _kind: u32, _buffer: Vec<u8>) {}

            fn on_client_disconnected(&self, clients: usize) -> minidumper::LoopAction {
                if clients == 0 { minidumper::LoopAction::Exit } else { minidumper::LoopAction::Continue }
            }
        }

        let mut server = minidumper::Server::with_name(minidumper::SocketName::from(name)).expect("a socket");
        let stop = std::sync::atomic::AtomicBool::new(false);
        let _ = server.run(Box::new(Handler(folder.to_owned())), &stop, None);
        std::process::exit(0)
    }
}

#[cfg(not(any(feature = "coroner", feature = "sentry", feature = "human-panic", feature = "minidumper")))]
mod reporter {
    use std::path::Path;

    pub(crate) fn install(_folder: &Path, _what: &str) {}
}
