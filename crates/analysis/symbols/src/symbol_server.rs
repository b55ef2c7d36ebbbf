//! Debug files from debuginfod servers, for a distribution's images.
//!
//! They are found by build id, and cached in the folder that elfutils and GDB use.
//!
//! Sources: `debuginfod(8)`, "Webapi"; `debuginfod_find_debuginfo(3)`, "Environment variables" and
//! "Cache".

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    fs::{self, File},
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use coroner_process::secure_execution::is_secure;

use crate::{debug_id::DebugId, error::SymbolError};

/// Lifetime of a cached answer that servers have no file: elfutils' `cache_miss_s`.
const MISS_TIME: Duration = Duration::from_mins(10);
/// Time for all answers of servers, unless `DEBUGINFOD_TIMEOUT` is set.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Time for all files, so that a server that stops sending can't block the command for ever.
const TRANSFER_TIME: Duration = Duration::from_mins(30);
/// Maximum size of a file, in bytes. Chromium's debug information has 3 GB.
const MAX_BYTES: u64 = 16 << 30;

/// Debuginfod servers and the cache for their files.
#[derive(Clone, Debug)]
pub struct Debuginfod {
    /// The servers in order of preference; requests are `URL/buildid/BUILDID/debuginfo`.
    pub urls: Vec<String>,
    /// The cache folder: `CACHE/BUILDID/debuginfo`.
    pub cache: PathBuf,
    /// Time that may be spent waiting for the servers to start to answer, for all files together.
    pub timeout: Duration,
    /// Called with a server's URL before its first request.
    pub before_first_request: Option<fn(&str)>,
    /// Time spent so far: on waiting for answers, on transfers.
    spent: Cell<(Duration, Duration)>,
    /// Servers that were contacted.
    contacted: RefCell<BTreeSet<String>>,
    /// Servers that could not be reached and are not contacted again.
    unreachable: RefCell<BTreeSet<String>>,
}

impl Debuginfod {
    /// Creates a configuration with these servers and this cache.
    pub fn new(urls: Vec<String>, cache: PathBuf) -> Self {
        Self {
            urls,
            cache,
            timeout: TIMEOUT,
            before_first_request: None,
            spent: Cell::default(),
            contacted: RefCell::default(),
            unreachable: RefCell::default(),
        }
    }

    /// Returns the configuration from the environment; `None` without a server or a cache folder.
    ///
    /// `DEBUGINFOD_URLS`, `DEBUGINFOD_CACHE_PATH` and `DEBUGINFOD_TIMEOUT` (seconds) are
    /// interpreted as in elfutils. They are ignored in a set-user-ID program.
    pub fn from_environment() -> Option<Self> {
        if is_secure() {
            return None;
        }
        let urls: Vec<String> = std::env::var("DEBUGINFOD_URLS").ok()?.split_whitespace().map(str::to_owned).collect();
        let absolute = |variable: &str| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
        let in_home = |below: &str| absolute("HOME").map(|home| home.join(below));
        let cache = absolute("DEBUGINFOD_CACHE_PATH")
            // The former cache folder of elfutils, if it still exists.
            .or_else(|| in_home(".debuginfod_client_cache").filter(|old| old.is_dir()))
            .or_else(|| absolute("XDG_CACHE_HOME").map(|caches| caches.join("debuginfod_client")))
            .or_else(|| in_home(".cache/debuginfod_client"))?;
        let mut found = Self::new(urls, cache);
        let seconds = std::env::var("DEBUGINFOD_TIMEOUT").ok().and_then(|seconds| seconds.parse().ok());
        found.timeout = seconds.filter(|seconds| *seconds > 0).map_or(TIMEOUT, Duration::from_secs);
        (!found.urls.is_empty()).then_some(found)
    }

    /// Returns the debug file for a build id, from the cache or a server; `None` if no server has
    /// it.
    ///
    /// # Errors
    /// [`SymbolError`] if the last server that was asked could not be reached, or if the file could
    /// not be written.
    pub(crate) fn debug_file(&self, id: &DebugId) -> Result<Option<PathBuf>, SymbolError> {
        let folder = self.cache.join(id.to_string());
        let path = folder.join("debuginfo");
        if let Ok(metadata) = fs::metadata(&path) {
            if metadata.len() > 0 {
                return Ok(Some(path));
            }
            // An empty file records that no server had it.
            let age = metadata.modified().ok().and_then(|modified| modified.elapsed().ok());
            if age.is_some_and(|age| age < MISS_TIME) {
                return Ok(None);
            }
        }
        fs::create_dir_all(&folder).map_err(|error| SymbolError::io(&folder, error))?;
        let mut outcome = Ok(None);
        let mut all_answered = true;
        for url in &self.urls {
            if self.unreachable.borrow().contains(url) {
                all_answered = false;
                continue;
            }
            let address = format!("{}/buildid/{id}/debuginfo", url.trim_end_matches('/'));
            if self.has_failed_lately(url) {
                self.unreachable.borrow_mut().insert(url.clone());
                all_answered = false;
                let why = "the server failed less than ten minutes ago and is not asked again";
                outcome = Err(SymbolError::io(Path::new(&address), io::Error::other(why)));
                continue;
            }
            if self.contacted.borrow_mut().insert(url.clone())
                && let Some(before) = self.before_first_request
            {
                before(url);
            }
            match self.fetch(url, &address, &path) {
                Ok(true) => return Ok(Some(path)),
                Ok(false) => {}
                Err(error) => {
                    self.unreachable.borrow_mut().insert(url.clone());
                    all_answered = false;
                    outcome = Err(SymbolError::io(Path::new(&address), error));
                }
            }
        }
        if all_answered {
            let _ = File::create(&path);
        }
        outcome
    }

    /// Returns the file whose time records when a server failed.
    fn failure_mark(&self, url: &str) -> PathBuf {
        let safe = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
        self.cache.join(format!("coroner-failed-{}", url.chars().map(safe).take(200).collect::<String>()))
    }

    /// Whether a server failed in this command or a recent one.
    fn has_failed_lately(&self, url: &str) -> bool {
        let modified = fs::metadata(self.failure_mark(url)).and_then(|metadata| metadata.modified());
        modified.ok().and_then(|modified| modified.elapsed().ok()).is_some_and(|age| age < MISS_TIME)
    }

    /// Downloads a URL to a file; `false` if the server has no such file. The file is written
    /// completely or not at all.
    fn fetch(&self, url: &str, address: &str, path: &Path) -> io::Result<bool> {
        let (waited, transferred) = self.spent.get();
        let wait = self.timeout.saturating_sub(waited);
        if wait.is_zero() {
            return Err(io::Error::new(ErrorKind::TimedOut, "the time for debuginfod servers is used up"));
        }
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(wait.min(Duration::from_secs(10))))
            .timeout_recv_response(Some(wait))
            .timeout_recv_body(Some(TRANSFER_TIME.saturating_sub(transferred).max(Duration::from_secs(1))))
            .build();
        let began = Instant::now();
        let response = config.new_agent().get(address).call().map_err(ureq::Error::into_io);
        self.spent.set((waited + began.elapsed(), transferred));
        if response.is_err() {
            // If the mark can't be written, the next command finds out itself.
            let _ = File::create(self.failure_mark(url));
        }
        let mut response = response?;
        let began = Instant::now();
        match response.status().as_u16() {
            200 => {}
            404 => return Ok(false),
            status => return Err(io::Error::other(format!("the server returned status {status}"))),
        }
        let length = response.body().content_length();
        let partial = path.with_extension(format!("{}.partial", std::process::id()));
        let written = File::create(&partial).and_then(|mut file| {
            let mut body = response.body_mut().with_config().limit(MAX_BYTES).reader();
            let written = io::copy(&mut body, &mut file)?;
            match length {
                Some(length) if length != written => Err(ErrorKind::UnexpectedEof.into()),
                _ => fs::rename(&partial, path),
            }
        });
        let (waited, transferred) = self.spent.get();
        self.spent.set((waited, transferred + began.elapsed()));
        if written.is_err() {
            let _ = fs::remove_file(&partial);
        }
        written.map(|()| true)
    }
}
