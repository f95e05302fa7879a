//! `nodusctl run --standalone`, as a person without root and without an agent types it.

#![allow(clippy::unwrap_used, reason = "a fixture that fails ends its test where it stands")]

mod bounded;

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn start(&self, options: &[&str], script: &str) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nodusctl"));
        let path = std::env::var_os("PATH").unwrap();
        command.env_clear().env("PATH", path).current_dir(self.0.path());
        command.args(["run", "--standalone", "--name", "train"]);
        command.args(["--store", "store", "--state-root", "jobs"]).args(options);
        command.args(["--", "sh", "-c", script]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    fn run(&self, options: &[&str], script: &str) -> (Option<i32>, String, String) {
        said(bounded::output(self.start(options, script)))
    }
}

fn said(output: Output) -> (Option<i32>, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

const SAVE: &str = "echo done; echo 1 > $NODUS_STATE_DIR/step";

#[test]
fn the_output_is_the_programs_alone_and_events_are_lines_beside_it() {
    let home = Home::new();
    let (status, stdout, stderr) = home.run(&[], SAVE);
    assert_eq!((status, stdout.as_str()), (Some(0), "done\n"), "{stderr}");
    assert!(home.0.path().join("jobs/train/state/step").exists());
    let lines: Vec<_> = stderr.lines().collect();
    assert_eq!(lines.first(), Some(&"nodus: attempt 1 started"), "{stderr}");
    assert_eq!(lines.last(), Some(&"nodus: Succeeded"), "{stderr}");
    assert!(stderr.contains("nodus: checkpoint 1 committed (Acked, 2 files, 2B, "), "{stderr}");
    assert!(lines.iter().all(|line| line.starts_with("nodus: ")), "{stderr}");

    let (status, stdout, stderr) = home.run(&[], SAVE);
    assert_eq!((status, stdout.as_str()), (Some(0), ""));
    assert_eq!(stderr, "nodus: job/train has succeeded before; delete it to run it again\n");
}

#[test]
fn events_are_json_where_programs_read() {
    let (status, _, stderr) = Home::new().run(&["-o", "json", "-v"], SAVE);
    assert_eq!(status, Some(0), "{stderr}");
    let events: Vec<serde_json::Value> =
        stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert!(names.contains(&"CheckpointCaptured") && names.contains(&"Phase"), "{names:?}");
}

#[test]
fn the_programs_status_is_the_runs() {
    let once = ["--max-retries", "0"];
    assert_eq!(Home::new().run(&once, "exit 7").0, Some(7));
    assert_eq!(Home::new().run(&once, "kill -SEGV $$").0, Some(139));
}

#[test]
fn ctrl_c_suspends_and_the_same_command_goes_on() {
    let home = Home::new();
    let script = "
        if test -s $NODUS_STATE_DIR/step; then echo resumed; exit 0; fi
        echo 1 > $NODUS_STATE_DIR/step; echo saved; exec sleep 600";
    let mut first = home.start(&[], script);
    let mut line = String::new();
    BufReader::new(first.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "saved\n");
    kill_process(Pid::from_child(&first), Signal::INT).unwrap();
    let (status, _, stderr) = said(bounded::output(first));
    assert_eq!(status, Some(75), "{stderr}");
    assert!(stderr.contains("nodus: Suspended\n"), "{stderr}");
    assert!(stderr.ends_with("the same command again goes on from the newest checkpoint\n"));

    let (status, stdout, stderr) = home.run(&[], script);
    assert_eq!((status, stdout.as_str()), (Some(0), "resumed\n"), "{stderr}");
    assert!(stderr.contains("nodus: attempt 2 started from checkpoint 1"), "{stderr}");
}
