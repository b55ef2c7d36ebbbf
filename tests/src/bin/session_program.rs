//! A program that installs Coroner and runs a difficult scenario for a crash session:
//! `session_program STORE SCENARIO NUMBER`.
//!
//! With the store `-`, it runs without Coroner, for comparison.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn main() {
    use coroner_tests::session::SCENARIOS;

    let mut arguments = std::env::args().skip(1);
    let mut next = |what: &str| arguments.next().unwrap_or_else(|| panic!("missing argument: {what}"));
    let (store, name, number) = (next("store"), next("scenario"), next("number"));
    let number = number.parse().expect("a number");
    let scenario = SCENARIOS.iter().find(|scenario| scenario.name == name);
    let scenario = scenario.unwrap_or_else(|| panic!("unknown scenario {name:?}"));
    (scenario.before_install)();
    let folder = if store == "-" {
        std::env::temp_dir().join(format!("session-program-{}", std::process::id()))
    } else {
        let config = coroner::Config::new("crash-program").version("1.0").store_dir(&store);
        let config = config.no_sinks().delivery(coroner::Delivery::new().symbolicate(false));
        if let Err(error) = coroner::install(config) {
            panic!("can't install Coroner: {error}");
        }
        store.into()
    };
    (scenario.run)(&folder, number);
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn main() {}
