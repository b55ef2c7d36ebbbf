use super::*;

/// Returns the default directory on a machine where `/h` and the directories in `there` exist.
fn default_store(app: &str, is_root: bool, variables: &[(&str, &str)], there: &[&str]) -> Option<String> {
    let find = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
    let exists = |path: &Path| path == Path::new("/h") || there.iter().any(|other| path == Path::new(other));
    default_store_dir_in(app, is_root, &find, &exists).map(|path| path.to_str().unwrap().to_owned())
}

fn store(app: &str, variables: &[(&str, &str)]) -> Option<String> {
    default_store(app, false, variables, &[])
}

#[test]
fn it_follows_the_base_directory_specification() {
    assert_eq!(store("app", &[("HOME", "/h")]).unwrap(), "/h/.local/state/app/coroner");
    assert_eq!(store("app", &[("HOME", "/h"), ("XDG_STATE_HOME", "/d")]).unwrap(), "/d/app/coroner");
    assert_eq!(store("app", &[("HOME", "/h"), ("XDG_STATE_HOME", "rel")]).unwrap(), "/h/.local/state/app/coroner");
    assert_eq!(store("app", &[]), None);
}

#[test]
fn services_need_no_home() {
    let state = ("STATE_DIRECTORY", "/var/lib/paint:/var/lib/other");
    assert_eq!(store("app", &[state, ("HOME", "/h")]).unwrap(), "/var/lib/paint/app/coroner");
    assert_eq!(store("app", &[("STATE_DIRECTORY", "rel"), ("HOME", "/h")]).unwrap(), "/h/.local/state/app/coroner");
    let nobody = [("HOME", "/nonexistent")];
    assert_eq!(store("app", &nobody), None);
    for variables in [&nobody[..], &[]] {
        assert_eq!(default_store("app", true, variables, &[]).unwrap(), "/var/lib/app/coroner");
    }
}

#[test]
fn an_app_id_is_a_name_and_not_a_path() {
    assert_eq!(store("../../x", &[("HOME", "/h")]).unwrap(), "/h/.local/state/..-..-x/coroner");
    assert_eq!(store("..", &[("HOME", "/h")]), None);
    assert_eq!(store("", &[("HOME", "/h")]), None);
}
