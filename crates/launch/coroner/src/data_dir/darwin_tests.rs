use super::*;

#[test]
fn the_store_is_in_the_library_folder() {
    let store = |app: &str, home: Option<&str>| {
        let find = |name: &str| home.filter(|_| name == "HOME").map(OsString::from);
        default_store_dir_in(app, true, &find, &|_| true).map(|path| path.to_str().unwrap().to_owned())
    };
    let home = Some("/Users/ann");
    assert_eq!(store("app", home).unwrap(), "/Users/ann/Library/Application Support/app/Coroner");
    assert_eq!(store("../x", home).unwrap(), "/Users/ann/Library/Application Support/..-x/Coroner");
    assert_eq!(store("app", None), None);
    assert_eq!(store("app", Some("relative")), None);
}
