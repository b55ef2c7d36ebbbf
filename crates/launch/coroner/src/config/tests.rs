use super::*;

#[test]
fn setting_a_group_again_replaces_it() {
    let config = Config::new("app").crashes(Crashes::new().stack_memory(0).chain_first(true));
    let config = config.crashes(Crashes::new().chain_first(false).all_threads(false));
    assert_eq!((config.crashes.stack_memory, config.crashes.all_threads), (2048, false));
    let config = config.delivery(Delivery::new().attempts(0).at_install(false)).delivery(Delivery::new().attempts(0));
    assert_eq!((config.delivery.attempts, config.delivery.at_install), (1, true));
    let config = config.exceptions(Exceptions::new().panics(false)).exceptions(Exceptions::new().cpp(false));
    assert_eq!((config.exceptions.panics, config.exceptions.cpp), (true, false));
    let config = config.limits(Limits::new().reports_per_hour(1)).limits(Limits::new());
    assert_eq!(config.limits.reports_per_hour, 16);
}

#[test]
fn a_clone_has_the_same_sinks_and_functions() {
    let config = Config::new("app")
        .sink(crate::FolderSink::new("/reports"))
        .before_breadcrumb(|breadcrumb| Some(breadcrumb))
        .delivery(Delivery::new().scrub(|key, _| Some(key.to_owned())).on_crashed_last_run(|_| {}));
    let clone = config.clone().version("2").crashes(Crashes::new().stack_memory(0));
    assert_eq!((config.version.as_deref(), config.crashes.stack_memory), (None, 2048));
    let same = |one: &Config, other: &Config| {
        Arc::ptr_eq(&one.sinks.as_ref().unwrap()[0], &other.sinks.as_ref().unwrap()[0])
            && Arc::ptr_eq(&one.delivery.scrub.as_ref().unwrap().0, &other.delivery.scrub.as_ref().unwrap().0)
    };
    assert!(same(&config, &clone));
    assert_eq!((clone.delivery.scrub.as_ref().unwrap())("key", "text").as_deref(), Some("key"));
    assert!(format!("{clone:?}").contains("scrub: Some(a function)"), "{clone:?}");
}
