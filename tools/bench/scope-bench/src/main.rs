//! `scope-bench ROUNDS`: measures the cost of setting a tag, a breadcrumb, a user and a context.
//!
//! Peers are the `sentry` crate and a plain store of the value's bytes, like Crashpad's
//! annotations. Prints one JSON object per line; `cargo xtask bench scope` runs it.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use coroner::{Breadcrumb, Level, User};
// Provides the functions that calls.c calls.
use coroner_ffi as _;
use sentry_core::protocol;
use sentry_core::{Client, ClientOptions, Envelope, Hub, Transport, TransportFactory};
use serde_json::json;

const KEYS: [&str; 8] = ["screen", "document", "tool", "layer", "zoom", "theme", "account", "experiment"];
const VALUES: [&str; 2] = ["preferences/shortcuts", "canvas/selection/lasso"];

const CATEGORY: &str = "ui.click";
const MESSAGE: &str = "opened the document `drawing-17`";

/// Calls per round.
const CALLS: u32 = 4096;

unsafe extern "C" {
    fn set_tags(calls: u32) -> u32;
    fn add_breadcrumbs(calls: u32) -> u32;
}

/// Returns the key and the value of a call, which differs from the key's previous value.
fn tag(call: u32) -> (&'static str, &'static str) {
    (KEYS[call as usize % 8], VALUES[call as usize / 8 % 2])
}

/// A transport that drops everything: the peer's client must be one that would send.
struct Nowhere;

impl Transport for Nowhere {
    fn send_envelope(&self, _envelope: Envelope) {}
}

impl TransportFactory for Nowhere {
    fn create_transport(&self, _options: &ClientOptions) -> Arc<dyn Transport> {
        Arc::new(Nowhere)
    }
}

/// A value of a fixed size that is stored word by word, then its length.
///
/// There is no key lookup, and a crash during the store leaves a mixture.
struct Annotation {
    length: AtomicU64,
    words: [AtomicU64; 32],
}

impl Annotation {
    const fn new() -> Self {
        Self { length: AtomicU64::new(0), words: [const { AtomicU64::new(0) }; 32] }
    }

    fn set(&self, value: &str) {
        let mut word = [0; 8];
        for (place, bytes) in self.words.iter().zip(value.as_bytes().chunks(8)) {
            word[..bytes.len()].copy_from_slice(bytes);
            place.store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
        self.length.store(value.len() as u64, Ordering::Relaxed);
    }
}

static ANNOTATIONS: [Annotation; 8] = [const { Annotation::new() }; 8];

/// An operation with one of the compared implementations.
struct Way {
    /// The operation.
    what: &'static str,
    who: &'static str,
    /// Performs the operation this many times.
    calls: fn(u32),
    least: f64,
}

fn ways() -> Vec<Way> {
    let way = |what, who, calls| Way { what, who, calls, least: f64::INFINITY };
    vec![
        way("tag", "coroner", |calls| {
            for call in 0..calls {
                let (key, value) = tag(call);
                coroner::set_tag(black_box(key), black_box(value)).expect("taken");
            }
        }),
        way("tag", "coroner from C", |calls| {
            // SAFETY: calls Coroner with static strings.
            assert_eq!(unsafe { set_tags(calls) }, calls, "each is taken");
        }),
        way("tag", "sentry crate", |calls| {
            for call in 0..calls {
                let (key, value) = tag(call);
                sentry_core::configure_scope(|scope| scope.set_tag(black_box(key), black_box(value)));
            }
        }),
        way("tag", "stored bytes", |calls| {
            for call in 0..calls {
                // Without a reader, the compiler would remove the store.
                black_box(&ANNOTATIONS)[call as usize % 8].set(black_box(tag(call).1));
            }
        }),
        way("breadcrumb", "coroner", |calls| {
            for _ in 0..calls {
                let breadcrumb = Breadcrumb::new(black_box(MESSAGE)).category(black_box(CATEGORY)).level(Level::Info);
                coroner::add_breadcrumb(&breadcrumb);
            }
        }),
        way("breadcrumb", "coroner from C", |calls| {
            // SAFETY: calls Coroner with static strings.
            assert_eq!(unsafe { add_breadcrumbs(calls) }, calls, "each is taken");
        }),
        way("breadcrumb", "sentry crate", |calls| {
            for _ in 0..calls {
                sentry_core::add_breadcrumb(protocol::Breadcrumb {
                    category: Some(black_box(CATEGORY).to_owned()),
                    message: Some(black_box(MESSAGE).to_owned()),
                    ..protocol::Breadcrumb::default()
                });
            }
        }),
        way("user", "coroner", |calls| {
            for _ in 0..calls {
                let user = User::new(black_box("4711")).name(black_box("Ada")).email(black_box("ada@example.com"));
                coroner::set_user(Some(&user)).expect("taken");
            }
        }),
        way("user", "sentry crate", |calls| {
            for _ in 0..calls {
                let user = protocol::User {
                    id: Some(black_box("4711").to_owned()),
                    username: Some(black_box("Ada").to_owned()),
                    email: Some(black_box("ada@example.com").to_owned()),
                    ..protocol::User::default()
                };
                sentry_core::configure_scope(|scope| scope.set_user(Some(user)));
            }
        }),
        // Both create the value from the app's data each time.
        way("context", "coroner", |calls| {
            for call in 0..calls {
                coroner::set_context("document", &json!({ "size": call, "kind": "drawing", "layers": [1, 2, 3] }))
                    .expect("taken");
            }
        }),
        way("context", "sentry crate", |calls| {
            for call in 0..calls {
                let mut map = std::collections::BTreeMap::new();
                map.insert("size".to_owned(), json!(call));
                map.insert("kind".to_owned(), json!("drawing"));
                map.insert("layers".to_owned(), json!([1, 2, 3]));
                sentry_core::configure_scope(|scope| scope.set_context("document", protocol::Context::Other(map)));
            }
        }),
    ]
}

fn main() {
    let rounds: u32 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(50);
    let store = tempfile::tempdir().expect("a directory");
    coroner::install(coroner::Config::new("scope-bench").store_dir(store.path())).expect("installed");
    let mut options = ClientOptions::default();
    options.dsn = Some("https://key@localhost/1".parse().expect("a DSN"));
    options.transport = Some(Arc::new(Nowhere));
    let client = Client::with_options(options);
    assert!(client.is_enabled(), "or the peer would do nothing");
    Hub::current().bind_client(Some(Arc::new(client)));

    let mut ways = ways();
    // All take turns, so that other load on the machine affects each equally.
    for _ in 0..=rounds {
        for way in &mut ways {
            let began = Instant::now();
            (way.calls)(CALLS);
            way.least = way.least.min(began.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS));
        }
    }
    for way in &ways {
        println!("{}", json!({ "what": way.what, "who": way.who, "ns": way.least }));
    }
}
