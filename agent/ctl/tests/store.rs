//! `nodusctl` on a store, with no agent anywhere.

#![allow(clippy::unwrap_used, reason = "a fixture that fails ends its test where it stands")]

mod bounded;

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use jiff::Timestamp;
use nodus_checkpoint::control::Control;
use nodus_checkpoint::root::Root;
use nodus_checkpoint::snapshot::{Asked, CaptureOptions, CommitInput, Finished, capture};
use nodus_checkpoint::store::JobStore;
use nodus_protocol::checkpoint::Cause;
use serde_json::Value;

/// A store with the checkpoints of one job, beside the job's directory.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn store(&self) -> JobStore {
        let uid = rustix::process::geteuid().as_raw();
        let job = "train".parse().unwrap();
        JobStore::create(&self.path("store"), &job, uid, Timestamp::now()).unwrap()
    }

    /// Takes a checkpoint of these paths, each with one file.
    fn commit(&self, seq: u64, paths: &[&str], content: &str) {
        let store = self.store();
        let root = |path: &&str| {
            let dir = self.path("jobs/train").join(path.trim_start_matches('/'));
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("step"), content).unwrap();
            Root { path: path.into(), dir }
        };
        let options = CaptureOptions {
            roots: paths.iter().map(root).collect(),
            credentials: None,
            max_size: 1 << 20,
            threads: 1.try_into().unwrap(),
            open_for_writing: HashSet::new(),
            exclude: HashSet::new(),
        };
        let now = Timestamp::now();
        let epoch = store.begin_epoch(1, seq, "here", now).unwrap();
        let input = CommitInput {
            attempt: 1,
            cause: Cause::Interval,
            started: now,
            captured: now,
            asked: Asked::Acked,
            now: &Timestamp::now,
        };
        let captured = capture(&store, &epoch, seq, &options, &Control::new()).unwrap();
        assert!(matches!(captured.finish(&input).unwrap(), Finished::Committed(_)));
    }

    /// Runs `nodusctl` on the store, where no agent could answer.
    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nodusctl"));
        command.env_clear().env("NODUS_CONTROL_SOCKET", self.path("no-agent"));
        command.current_dir(self.0.path()).args(args).args(["--store", "store"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        bounded::output(command.spawn().unwrap())
    }

    #[track_caller]
    fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), stderr.as_ref()), (Some(0), ""), "{args:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    fn refused(&self, args: &[&str], status: i32, sentence: &str) {
        let output = self.run(args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{args:?}: {stderr}");
        assert!(stderr.starts_with("nodusctl: ") && stderr.contains(sentence), "{stderr}");
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn checkpoints_are_listed_and_shown() {
    let home = Home::new();
    home.commit(1, &["/nodus/state"], "one");
    home.commit(2, &["/nodus/state"], "two");
    let list: Value =
        serde_json::from_str(&home.ok(&["checkpoint", "list", "train", "-o", "json"])).unwrap();
    let seqs: Vec<_> = list.as_array().unwrap().iter().map(|info| info["seq"].clone()).collect();
    assert_eq!(seqs, [1, 2]);
    assert!(list[1]["committed"].is_string());
    let table = home.ok(&["checkpoint", "list", "job/train"]);
    assert!(table.contains("\n  2  Committed  Acked        Interval"), "{table}");
    let newest = home.ok(&["checkpoint", "show", "train"]);
    assert!(newest.starts_with("Checkpoint:     2\n"), "{newest}");
    home.refused(&["checkpoint", "show", "train", "3"], 4, "job train has no checkpoint 3");
    home.refused(&["checkpoint", "list", "other"], 4, "nothing of job/other");
}

#[test]
fn a_checkpoint_whose_record_is_damaged_is_listed_as_that() {
    let home = Home::new();
    home.commit(1, &["/nodus/state"], "one");
    fs::write(home.path("store/jobs/train/checkpoints/1/checkpoint.json"), "{").unwrap();
    let table = home.ok(&["checkpoint", "list", "train"]);
    assert!(table.contains("\n  1  Damaged  -            Unknown"), "{table}");
}

#[test]
fn the_newest_checkpoint_or_an_older_one_is_restored() {
    let home = Home::new();
    home.commit(1, &["/nodus/state"], "one");
    home.commit(2, &["/nodus/state"], "two");
    let text = home.ok(&["restore", "train", "--to", "newest"]);
    let to = home.path("newest");
    assert!(text.starts_with(&format!("checkpoint 2 restored to {}: 2 ", to.display())), "{text}");
    assert_eq!(read(&to.join("step")), "two");
    home.ok(&["restore", "train", "--to", "older", "--seq", "1"]);
    assert_eq!(read(&home.path("older/step")), "one");
}

#[test]
fn several_paths_are_restored_below_the_directory() {
    let home = Home::new();
    home.commit(1, &["/nodus/state", "/data/cache"], "one");
    home.ok(&["restore", "train", "--to", "all"]);
    assert_eq!(read(&home.path("all/nodus/state/step")), "one");
    assert_eq!(read(&home.path("all/data/cache/step")), "one");
}

#[test]
fn verify_reads_all_data_and_fails_if_any_is_damaged() {
    let home = Home::new();
    home.commit(1, &["/nodus/state"], "one");
    home.commit(2, &["/nodus/state"], "two!");
    let sound = "checkpoint 1 is sound, 3B compared\ncheckpoint 2 is sound, 4B compared\n";
    assert_eq!(home.ok(&["checkpoint", "verify", "train"]), sound);
    let archive = home.path("store/jobs/train/checkpoints/2/data-0.tar.zst");
    let file = fs::File::options().write(true).open(archive).unwrap();
    file.set_len(10).unwrap();
    let output = home.run(&["checkpoint", "verify", "train"]);
    assert_eq!(output.status.code(), Some(1));
    let found = String::from_utf8(output.stdout).unwrap();
    assert!(found.starts_with("checkpoint 1 is sound"), "{found}");
    assert!(found.contains("\ncheckpoint 2 is damaged: "), "{found}");
    home.ok(&["checkpoint", "verify", "train", "1"]);
}

#[test]
fn an_export_is_an_ordinary_archive() {
    let home = Home::new();
    home.commit(1, &["/nodus/state"], "one");
    let said = home.ok(&["checkpoint", "export", "train", "-O", "x.tar.zst"]);
    assert!(said.starts_with("x.tar.zst: "), "{said}");
    fs::create_dir(home.path("out")).unwrap();
    let mut tar = Command::new("tar");
    tar.args(["--zstd", "-xf", "x.tar.zst", "-C", "out"]).current_dir(home.0.path());
    assert!(tar.status().unwrap().success());
    assert_eq!(read(&home.path("out/nodus/state/step")), "one");
    let piped = home.run(&["checkpoint", "export", "train", "1"]).stdout;
    assert_eq!(piped, fs::read(home.path("x.tar.zst")).unwrap());
    home.refused(&["checkpoint", "export", "train", "7", "-O", "y"], 4, "no checkpoint 7");
    assert!(!home.path("y").exists());
}

#[test]
fn a_checkpoint_is_deleted_unless_another_is_being_written() {
    let home = Home::new();
    home.commit(1, &["/nodus/state"], "one");
    home.commit(2, &["/nodus/state"], "two");
    let store = home.store();
    let writing = store.lock().unwrap().unwrap();
    home.refused(&["checkpoint", "delete", "train", "1"], 5, "is just being written");
    drop(writing);
    let said = home.ok(&["checkpoint", "delete", "train", "1"]);
    assert_eq!(said, "checkpoint 1 of job/train is deleted\n");
    home.refused(&["checkpoint", "delete", "train", "1"], 4, "no checkpoint 1");
    home.ok(&["checkpoint", "verify", "train"]);
}

#[test]
fn a_restore_never_replaces_what_is_there() {
    let home = Home::new();
    home.commit(1, &["/nodus/state"], "one");
    fs::create_dir(home.path("thesis")).unwrap();
    fs::write(home.path("thesis/chapter"), "all of it").unwrap();
    home.refused(&["restore", "train", "--to", "thesis"], 5, "a new or empty directory");
    assert_eq!(read(&home.path("thesis/chapter")), "all of it");
    assert_eq!(fs::read_dir(home.path("thesis")).unwrap().count(), 1);
}

#[test]
fn a_standalone_job_is_deleted_whole_unless_it_runs() {
    let home = Home::new();
    home.commit(1, &["/nodus/state"], "one");
    let delete = ["delete", "train", "--state-root", "jobs"];
    let store = home.store();
    let writing = store.lock().unwrap().unwrap();
    home.refused(&delete, 5, "is just being written");
    drop(writing);
    let records = home.path("jobs/train/.nodus");
    fs::create_dir(&records).unwrap();
    let running = nodus_agent::standalone::claim(&records, &"train".parse().unwrap()).unwrap();
    home.refused(&delete, 5, "already running in another process");
    assert!(home.path("jobs/train/nodus/state/step").exists());
    drop(running);
    assert_eq!(home.ok(&delete), "job/train and its checkpoints are deleted\n");
    assert!(!home.path("jobs/train").exists());
    assert!(!home.path("store/jobs/train").exists());
    home.refused(&delete, 4, "nothing of job/train");
}
