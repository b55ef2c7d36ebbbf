//! One launch of an app with Coroner's default settings, a folder sink and a server:
//! `launch_program STORE DSN [WORD…]`.
//!
//! Words, in this order: `keep` delivers nothing, `wait` waits for an input line, `work=MS` works
//! for this long, `crash` crashes, `flush` waits for delivery and prints whether everything was
//! delivered.

#[cfg(not(all(target_os = "linux", not(without_delivery))))]
fn main() {
    eprintln!("delivery is only tested on Linux");
    std::process::exit(2);
}

#[cfg(all(target_os = "linux", not(without_delivery)))]
fn main() {
    use coroner::{Config, Delivery, FolderSink, SentrySink};
    use std::time::Duration;

    let mut arguments = std::env::args().skip(1);
    let (store, dsn) = (arguments.next().expect("a store"), arguments.next().expect("a DSN"));
    let words: Vec<String> = arguments.collect();
    let has = |word: &str| words.iter().any(|other| other == word);
    let config = Config::new("launch-program").version("1.0").store_dir(&store);
    let config = config.delivery(Delivery::new().at_install(!has("keep")));
    let folder = FolderSink::new(std::path::Path::new(&store).join("reports"));
    let config = config.sink(folder).sink(SentrySink::new(&dsn).expect("a DSN"));
    let coroner = coroner::install(config).expect("can't install Coroner");
    println!("installed");
    if has("wait") {
        std::io::stdin().read_line(&mut String::new()).expect("a line");
    }
    if let Some(ms) = words.iter().find_map(|word| word.strip_prefix("work=")) {
        std::thread::sleep(Duration::from_millis(ms.parse().expect("a number")));
    }
    if has("crash") {
        (coroner_faults::find("null-store").expect("a fault").run)();
    }
    if has("flush") {
        println!("flushed: {}", coroner.flush(Duration::from_mins(1)));
    }
}
