//! An app with Coroner.
//!
//! ```sh
//! cargo run -p rust-app -- crash     # crashes
//! cargo run -p rust-app              # reports it, and stores the report
//! ```

use std::time::Duration;

use coroner::{Breadcrumb, Config, Delivery};

struct Picture {
    pixels: *mut u32,
    width: usize,
}

impl Picture {
    /// A bug, as one has them: nobody checks that the pixels are there.
    fn fill(&mut self, colour: u32) {
        for x in 0..self.width {
            // SAFETY: none, and that is the bug.
            unsafe { self.pixels.add(x).write_volatile(colour) };
        }
    }
}

fn paint(crash: bool) {
    let mut row = vec![0; 64];
    let pixels = if crash { std::ptr::null_mut() } else { row.as_mut_ptr() };
    let mut picture = Picture { pixels, width: row.len() };
    coroner::add_breadcrumb(&Breadcrumb::new("fills the picture").category("paint"));
    picture.fill(0x00ff_8000);
    println!("painted {} pixels", row.len());
}

fn main() {
    // This is all that an app needs; the rest of this file is an app.
    let delivery =
        Delivery::new().on_crashed_last_run(|last| println!("sorry: the last run crashed, report {:?}", last.event_id));
    let config = Config::new("com.example.paint").version(env!("CARGO_PKG_VERSION")).delivery(delivery);
    let installed = coroner::install(config);
    match &installed {
        Ok(coroner) => println!("the last run {}", coroner.last_run().outcome),
        // An app does not fail because its crash reporter did.
        Err(error) => eprintln!("crashes will not be reported: {error}"),
    }
    let _ = coroner::set_tag("channel", "beta");
    paint(std::env::args().any(|argument| argument == "crash"));

    // An app that ends this soon gives the delivery of older reports a moment.
    if let Ok(coroner) = installed {
        coroner.flush(Duration::from_secs(10));
        println!("reports are in {}", coroner.store_dir().join("reports").display());
    }
}
