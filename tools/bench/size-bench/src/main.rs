//! The smallest app with a crash reporter: `size-bench [crash]`.
//!
//! A feature selects the reporter at build time, and it is set up as its own README describes:
//! `coroner-raw`, `coroner`, `coroner-sentry`, `minidumper` (crash-handler with a server in a
//! separate process), `sentry`; without a feature there is none. With `crash` it stores to address
//! 0.

fn main() {
    let _guard = reporter::install();
    if std::env::args().nth(1).is_some_and(|what| what == "crash") {
        // SAFETY: none is claimed; it crashes.
        unsafe { std::ptr::null_mut::<u32>().write_volatile(1) };
    }
    println!("done");
}

#[cfg(feature = "coroner-sentry")]
mod reporter {
    pub(crate) fn install() -> coroner::Coroner {
        // Nothing listens on this port: nothing should be sent.
        let sink = coroner::SentrySink::new("http://key@127.0.0.1:9/1").expect("a DSN");
        coroner::install(coroner::Config::new("com.example.tool").sink(sink)).expect("Coroner installs")
    }
}

#[cfg(all(any(feature = "coroner", feature = "coroner-raw"), not(feature = "coroner-sentry")))]
mod reporter {
    pub(crate) fn install() -> coroner::Coroner {
        coroner::install(coroner::Config::new("com.example.tool")).expect("Coroner installs")
    }
}

#[cfg(feature = "sentry")]
mod reporter {
    pub(crate) fn install() -> sentry::ClientInitGuard {
        let options = sentry::ClientOptions::new().release("tool@1.0");
        sentry::init(("http://key@127.0.0.1:9/1", options))
    }
}

#[cfg(feature = "minidumper")]
mod reporter {
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    const SOCKET: &str = "SIZE_BENCH_SOCKET";

    pub(crate) fn install() -> crash_handler::CrashHandler {
        if let Some(name) = std::env::var_os(SOCKET) {
            serve(Path::new(&name));
        }
        let name = std::env::temp_dir().join(format!("size-bench-{}", std::process::id()));
        // As in minidumper's example: starts the program again as a server, and connects to it when
        // it is ready.
        let program = std::env::current_exe().expect("the program has a path");
        std::process::Command::new(program).env(SOCKET, &name).spawn().expect("the server starts");
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
        handler.expect("crash-handler attaches")
    }

    fn serve(name: &Path) -> ! {
        struct Handler(PathBuf);

        impl minidumper::ServerHandler for Handler {
            fn create_minidump_file(&self) -> std::io::Result<(std::fs::File, PathBuf)> {
                Ok((std::fs::File::create(&self.0)?, self.0.clone()))
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
        let _ = server.run(Box::new(Handler(name.with_extension("dmp"))), &stop, None);
        std::process::exit(0)
    }
}

#[cfg(not(any(feature = "coroner-raw", feature = "coroner", feature = "sentry", feature = "minidumper")))]
mod reporter {
    pub(crate) fn install() {}
}
