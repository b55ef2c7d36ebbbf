use super::*;

fn run(folder: &tempfile::TempDir, id: Id) -> Directory {
    let runs = Directory::create(&folder.path().join("runs")).unwrap();
    let run = runs.create_subdirectory(&name_of(id)).unwrap();
    run.write_atomically(LOCK.as_ref(), b"").unwrap();
    run.write_atomically(STATE.as_ref(), b"").unwrap();
    runs
}

const ID: Id = Id([7; 16]);

fn own() -> ProcessIdentity {
    ProcessIdentity::of_this_process()
}

#[test]
fn a_process_claims_a_run_only_once_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let runs = run(&folder, ID);
    let first = claim(&runs, ID, &own()).unwrap();
    assert!(matches!(first, Claim::Taken(_)), "{first:?}");
    // The same under another name of the directory.
    let again = Directory::open(&folder.path().join("runs/../runs")).unwrap();
    // A rejected claim doesn't affect the owner.
    assert!(matches!(claim(&again, ID, &own()).unwrap(), Claim::Busy));
    assert!(matches!(claim(&again, ID, &own()).unwrap(), Claim::Busy));
    drop(first);
    assert!(matches!(claim(&runs, ID, &own()).unwrap(), Claim::Taken(_)));
}

#[test]
fn a_run_is_busy_while_its_process_is_running() {
    let folder = tempfile::tempdir().unwrap();
    let runs = run(&folder, ID);
    // A second process: this test program, running only `holder`.
    let mut living = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store::claim::tests::holder", "--nocapture", "--quiet"])
        .env(HOLD, runs.path().join(ID.to_string()).join(LOCK))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let output = std::io::BufReader::new(living.stdout.take().unwrap());
    let held = std::io::BufRead::lines(output).any(|line| line.unwrap().contains("held"));
    assert!(held, "the second process did not get the lock");
    assert!(matches!(claim(&runs, ID, &own()).unwrap(), Claim::Busy));
    living.kill().unwrap();
    living.wait().unwrap();
    assert!(matches!(claim(&runs, ID, &own()).unwrap(), Claim::Taken(_)));
}

/// Environment variable with the path of the lock file that [`holder`] holds.
const HOLD: &str = "CORONER_TEST_HOLD";

/// Not a test: the second process of the test above.
#[test]
fn holder() {
    let Some(path) = std::env::var_os(HOLD) else { return };
    let file = File::options().read(true).write(true).open(path).unwrap();
    assert!(try_lock(&file).unwrap());
    println!("held");
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
}

#[test]
fn a_lock_that_is_not_a_file_does_not_block_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let runs = run(&folder, ID);
    let lock = runs.path().join(ID.to_string()).join(LOCK);
    std::fs::remove_file(&lock).unwrap();
    std::fs::create_dir_all(lock.join("with/more")).unwrap();
    assert!(matches!(claim(&runs, ID, &own()).unwrap(), Claim::Taken(_)));
    std::fs::remove_dir_all(&lock).unwrap();
    let path = std::ffi::CString::new(lock.into_os_string().into_encoded_bytes()).unwrap();
    // SAFETY: the path ends in NUL.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    let taken = claim(&runs, ID, &own()).unwrap();
    assert!(matches!(taken, Claim::Taken(_)));
    // Another process can't get the lock now.
    let directory = Directory::open(&runs.path().join(ID.to_string())).unwrap();
    assert!(!directory.try_lock().unwrap());
}

/// Writes a run state for the run `of` into the run's directory.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn write_state(runs: &Directory, of: Id, process: &ProcessIdentity) -> std::path::PathBuf {
    let limits = coroner_report::run_state::Limits::default();
    let words: Vec<_> = (0..limits.size() / 8).map(|_| std::sync::atomic::AtomicU64::new(0)).collect();
    let state = coroner_report::run_state::RunState::create(&words, &limits, of.0, process).unwrap();
    let run = runs.subdirectory(&name_of(ID)).unwrap();
    run.write_atomically(STATE.as_ref(), &state.to_bytes()).unwrap();
    run.path().join(STATE)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
#[test]
fn a_run_of_a_running_process_has_ended_if_its_state_is_not_mapped_or_not_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let runs = run(&folder, ID);
    // This process is running; the run belongs to the program that it executed before this one.
    write_state(&runs, ID, &own());
    assert!(matches!(claim(&runs, ID, &own()).unwrap(), Claim::Taken(_)));
    let path = write_state(&runs, ID, &own());
    let state = File::open(&path).unwrap();
    let mapping = |length: usize| {
        let flags = libc::MAP_SHARED;
        // SAFETY: a new mapping, which is never read.
        unsafe {
            libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ, flags, std::os::fd::AsRawFd::as_raw_fd(&state), 0)
        }
    };
    let mapped = mapping(4096);
    assert_ne!(mapped, libc::MAP_FAILED);
    assert!(matches!(claim(&runs, ID, &own()).unwrap(), Claim::Busy));
    // A child created by fork copied its parent's state and has ended.
    write_state(&runs, Id([8; 16]), &own());
    assert!(matches!(claim(&runs, ID, &own()).unwrap(), Claim::Taken(_)));
    // SAFETY: mapped above.
    unsafe { libc::munmap(mapped, 4096) };
}

#[cfg(any(target_os = "linux", target_os = "android"))]
#[test]
fn a_run_of_another_pid_namespace_is_live_while_its_state_is_open_for_writing() {
    // If the file system has no leases, the lock alone decides.
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let runs = run(&folder, ID);
    let path = write_state(&runs, ID, &ProcessIdentity { pid_namespace: 1, ..own() });
    let mut holder = std::process::Command::new("sh")
        .args(["-c", "exec 3<>\"$1\"; echo held; read line", "sh"])
        .arg(&path)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(holder.stdout.take().unwrap()), &mut line).unwrap();
    assert!(matches!(claim(&runs, ID, &own()).unwrap(), Claim::Busy));
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert!(matches!(claim(&runs, ID, &own()).unwrap(), Claim::Taken(_)));
    // All processes of another boot have ended.
    let _open =
        File::options().write(true).open(write_state(&runs, ID, &ProcessIdentity { boot_id: [1; 16], ..own() }));
    assert!(matches!(claim(&runs, ID, &own()).unwrap(), Claim::Taken(_)));
}

#[test]
fn a_run_that_is_being_created_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let runs = Directory::create(&folder.path().join("runs")).unwrap();
    let run = runs.create_subdirectory(&name_of(ID)).unwrap();
    assert!(matches!(claim(&runs, ID, &own()).unwrap(), Claim::Busy));
    run.write_atomically(LOCK.as_ref(), b"").unwrap();
    assert!(matches!(claim(&runs, ID, &own()).unwrap(), Claim::Busy));
    run.write_atomically(STATE.as_ref(), b"").unwrap();
    assert!(matches!(claim(&runs, ID, &own()).unwrap(), Claim::Taken(_)));
}

#[test]
fn an_entry_that_is_not_a_run_is_an_error_that_describes_it() {
    let folder = tempfile::tempdir().unwrap();
    let runs = Directory::create(&folder.path().join("runs")).unwrap();
    assert!(matches!(claim(&runs, ID, &own()).unwrap(), Claim::Gone));
    std::os::unix::fs::symlink("/", runs.path().join(ID.to_string())).unwrap();
    let error = claim(&runs, ID, &own()).unwrap_err();
    assert!(error.to_string().contains("symbolic link"), "{error}");
}
