//! Tests of data directory files on a real disk.

use runtime::files::DataDirectory;
use std::env;
use std::io::{BufRead, BufReader, ErrorKind, IoSlice};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Environment variable that makes the test below act as the other process.
const OTHER: &str = "BALLAST_TEST_DATA_DIRECTORY";

#[test]
fn files_keep_what_is_written_under_their_numbers() {
    let root = tempfile::tempdir().unwrap();
    let directory = DataDirectory::open(&root.path().join("a/b")).unwrap();
    let folder = directory.folder("numbers").unwrap();
    assert_eq!(folder.list().unwrap(), []);
    for number in [7, 3, 1_000_000] {
        let file = folder.create(number, 1 << 16).unwrap();
        let (first, second) = (number.to_le_bytes(), [9; 5000]);
        file.write(10, &mut [IoSlice::new(&first), IoSlice::new(&[]), IoSlice::new(&second)])
            .unwrap();
        file.sync().unwrap();
    }
    assert_eq!(folder.list().unwrap(), [3, 7, 1_000_000]);
    let file = folder.open(3).unwrap();
    file.read_ahead(5000);
    file.read_ahead(u64::MAX);
    let mut bytes = vec![1; 6000];
    assert_eq!(file.read(10, &mut bytes).unwrap(), 6000, "there is room for more");
    assert_eq!(bytes[..4], [3, 0, 0, 0]);
    assert_eq!(bytes[4..5004], [9; 5000]);
    assert_eq!(bytes[5004..], [0; 996]);
    assert_eq!(file.read(65_530, &mut bytes).unwrap(), 6);
    assert_eq!(file.read(1 << 20, &mut bytes).unwrap(), 0);
    folder.remove(3).unwrap();
    folder.remove(3).unwrap();
    assert_eq!(folder.list().unwrap(), [7, 1_000_000]);
}

#[test]
fn names_that_are_not_ours_are_left_alone() {
    let root = tempfile::tempdir().unwrap();
    let folder = DataDirectory::open(root.path()).unwrap().folder("numbers").unwrap();
    for name in ["7", "+00007", "0000007", "notes", "000007.old"] {
        std::fs::write(root.path().join("numbers").join(name), b"mine").unwrap();
    }
    folder.create(7, 1).unwrap();
    assert_eq!(folder.list().unwrap(), [7]);
}

#[test]
fn errors_say_which_file_and_what_can_be_done() {
    let root = tempfile::tempdir().unwrap();
    let folder = DataDirectory::open(root.path()).unwrap().folder("numbers").unwrap();
    let missing = folder.open(5).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert!(missing.to_string().contains("numbers/000005: cannot open"), "{missing}");
    folder.create(5, 1).unwrap();
    assert_eq!(folder.create(5, 1).unwrap_err().kind(), ErrorKind::AlreadyExists);
    let huge = folder.create(6, 1 << 60).unwrap_err();
    assert!(huge.to_string().contains("numbers/000006: cannot reserve"), "{huge}");
    let occupied = root.path().join("occupied");
    std::fs::write(&occupied, b"a file").unwrap();
    let error = DataDirectory::open(&occupied).unwrap_err();
    assert!(error.to_string().contains("occupied: cannot make"), "{error}");
}

#[test]
fn a_directory_belongs_to_one_process_until_that_is_gone() {
    if let Some(path) = env::var_os(OTHER) {
        return hold_until_killed(Path::new(&path));
    }
    let root = tempfile::tempdir().unwrap();
    let mut other = start_other(root.path());
    let refused = DataDirectory::open(root.path()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ResourceBusy);
    let owner = format!("process {}", other.id());
    assert!(refused.to_string().contains(&owner), "{refused}");
    other.kill().unwrap();
    other.wait().unwrap();
    let mine = DataDirectory::open(root.path()).unwrap();
    let folder = mine.folder("numbers").unwrap();
    assert_eq!(DataDirectory::open(root.path()).unwrap_err().kind(), ErrorKind::ResourceBusy);
    drop(mine);
    assert!(DataDirectory::open(root.path()).is_err(), "a folder is in use");
    drop(folder);
    DataDirectory::open(root.path()).unwrap();
}

/// Runs this test again as another process, and waits until it has locked the directory.
fn start_other(path: &Path) -> Child {
    let mut other = Command::new(env::current_exe().unwrap())
        .args(["--exact", "a_directory_belongs_to_one_process_until_that_is_gone", "--nocapture"])
        .env(OTHER, path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(other.stdout.take().unwrap()).lines();
    let ready = lines.map_while(Result::ok).any(|line| line.ends_with("it is mine"));
    assert!(ready, "the other process has ended");
    other
}

fn hold_until_killed(path: &Path) {
    let _directory = DataDirectory::open(path).unwrap();
    println!("it is mine");
    // Also ends if the first process dies.
    let _ = std::io::stdin().read_line(&mut String::new());
}
