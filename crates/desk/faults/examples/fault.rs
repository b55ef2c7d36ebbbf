//! Runs one fault by name, or lists them.
//!
//! Run it with `cargo run -p coroner-faults --example fault -- null-store`.

fn main() {
    let Some(name) = std::env::args().nth(1) else {
        for fault in coroner_faults::FAULTS {
            println!("{:32} {}", fault.name, fault.about);
        }
        return;
    };
    let Some(fault) = coroner_faults::find(&name) else {
        eprintln!("no fault is called {name:?}; run this without an argument for the list");
        std::process::exit(2);
    };
    (fault.run)();
}
