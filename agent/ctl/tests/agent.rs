//! `nodusctl` against an agent whose every answer a test decides.

mod bounded;
mod fake;

use std::path::Path;
use std::process::{Command, Output, Stdio};

use fake::{Answer, Fake};
use serde_json::{Value, json};

fn nodusctl(socket: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodusctl"));
    command.env_clear().env("NODUS_CONTROL_SOCKET", socket).env("MARK", "of-the-caller");
    command.args(args).stdin(Stdio::null());
    command
}

fn ended(command: &mut Command) -> Output {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    bounded::output(command.spawn().expect("the built binary runs"))
}

fn run(agent: &Fake, args: &[&str]) -> Output {
    ended(&mut nodusctl(agent.socket(), args))
}

#[track_caller]
fn check(agent: &Fake, args: &[&str], status: i32, stdout: &str, stderr: &str) {
    let output = run(agent, args);
    let found = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(status), "{args:?}: {found:?}");
    assert_eq!((found.0.as_ref(), found.1.as_ref()), (stdout, stderr), "{args:?}");
}

fn job(phase: &str, attempts: &[Option<i32>]) -> Value {
    let attempt = |(index, code): (usize, &Option<i32>)| {
        let mut attempt = json!({"number": index + 1, "started": "2026-11-30T12:00:00Z"});
        if let Some(code) = code {
            attempt["ended"] = json!("2026-11-30T12:00:01Z");
            attempt["end"] = json!({"type": "Exited", "code": code});
        }
        attempt
    };
    json!({
        "name": "train", "uid": 1000, "phase": phase, "attempt": attempts.len(), "retries": 0,
        "created": "2026-11-30T12:00:00Z", "wallTime": "1s", "subscribers": 0, "stateDir": "/s",
        "spec": {"name": "train", "command": ["true"]},
        "attempts": attempts.iter().enumerate().map(attempt).collect::<Vec<_>>(),
    })
}

#[test]
fn without_an_agent_one_sentence_names_the_socket_and_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("control.sock");
    let output = ended(&mut nodusctl(&socket, &["list"]));
    assert_eq!(output.status.code(), Some(3));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains(&format!("no agent answers at {}", socket.display())), "{text}");
    assert!(text.contains("--standalone"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn what_is_invalid_is_refused_before_an_agent_is_asked() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("control.sock");
    let args = ["run", "--name", "n", "--interval", "30s", "--", "true"];
    let output = ended(&mut nodusctl(&socket, &args));
    assert_eq!(output.status.code(), Some(2));
    let expected = "nodusctl: recovery.checkpoint.interval: \"30s\" is not allowed: auto, or a \
                    duration from 1m to 6h\n";
    assert_eq!(String::from_utf8(output.stderr).unwrap(), expected);
}

#[test]
fn a_listing_is_a_table_or_json() {
    let agent = Fake::new(|_| Answer::json(&json!([job("Running", &[None])])));
    let output = run(&agent, &["list"]);
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.starts_with("NAME   PHASE    ATTEMPT"), "{table}");
    let output = run(&agent, &["list", "-o", "json"]);
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(list[0]["created"], "2026-11-30T12:00:00Z");
    assert_eq!(agent.requests()[0].line, "GET /v1/jobs");
}

#[test]
fn a_problem_is_its_sentence_and_a_status_of_its_kind() {
    for (status, expected) in [(404, 4), (409, 5), (403, 5), (422, 2), (503, 1), (500, 1)] {
        let detail = "job/train: cannot be suspended while it is Pending";
        let agent = Fake::new(move |_| Answer::problem(status, detail));
        check(&agent, &["suspend", "train"], expected, "", &format!("nodusctl: {detail}\n"));
    }
    let agent = Fake::new(|_| Answer::Whole(502, b"<html>".to_vec()));
    let expected = "nodusctl: the agent answered GET /v1/jobs with status 502 and no description\n";
    check(&agent, &["list"], 1, "", expected);
}

#[test]
fn a_detached_run_hands_the_job_and_the_environment_over() {
    let agent = Fake::new(|_| Answer::json(&job("Pending", &[])));
    let args = ["run", "--name", "train", "--env", "A=1", "-d", "--", "python", "t.py", "-d"];
    check(&agent, &args, 0, "job/train is submitted\n", "");
    let request = &agent.requests()[0];
    assert_eq!(request.line, "POST /v1/jobs");
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    assert_eq!(body["spec"]["command"], json!(["python", "t.py", "-d"]));
    assert_eq!(body["spec"]["env"], json!({"A": "1"}));
    assert_eq!(body["environment"]["MARK"], "of-the-caller");
    let here = std::env::current_dir().unwrap();
    assert_eq!(body["spec"]["workdir"], json!(here));
}

#[test]
fn an_attached_run_follows_every_attempt_and_passes_the_status_on() {
    // The agent restarts while the first attempt writes: the stream breaks off, nothing is printed
    // twice, and the second attempt is followed as well.
    let agent = Fake::new(|request| match (request.line.as_str(), request.nth) {
        ("POST /v1/jobs", _) => Answer::json(&job("Pending", &[])),
        ("GET /v1/jobs/train", 0) => Answer::json(&job("Pending", &[])),
        ("GET /v1/jobs/train", 1..4) => Answer::json(&job("Running", &[None])),
        ("GET /v1/jobs/train", _) => {
            let mut over = job("Failed", &[Some(1), Some(42)]);
            over["reason"] = json!("RetriesExceeded");
            Answer::json(&over)
        }
        ("GET /v1/jobs/train/logs?follow=true&attempt=1", 0) => Answer::Broken(b"one tw".to_vec()),
        ("GET /v1/jobs/train/logs?follow=true&attempt=1", _) => Answer::text("one two\n"),
        ("GET /v1/jobs/train/logs?follow=true&attempt=2", _) => Answer::text("three\n"),
        _ => Answer::problem(500, &request.line),
    });
    let args = ["run", "--name", "train", "--", "true"];
    let note = "nodus: job/train is Failed (RetriesExceeded)\n";
    check(&agent, &args, 42, "one two\nthree\n", note);
}

#[test]
fn ctrl_c_leaves_the_job_and_says_how_to_suspend_it() {
    let agent = Fake::new(|request| match request.line.as_str() {
        "GET /v1/jobs/train/logs?follow=true&attempt=1" => Answer::Open(b"step 1\n".to_vec()),
        _ => Answer::json(&job("Running", &[None])),
    });
    let args = ["run", "--name", "train", "--", "true"];
    let mut command = nodusctl(agent.socket(), &args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
    assert_eq!(line, "step 1\n");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = bounded::output(child);
    assert_eq!(output.status.code(), Some(130));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("nodusctl suspend job/train"), "{said}");
    let asked_to_end = |line: &str| line.contains("suspend") || line.contains("stop");
    assert!(!agent.requests().iter().any(|request| asked_to_end(&request.line)));
}

#[test]
fn checkpoint_now_ends_with_what_came_of_it() {
    let committed = json!({"outcome": "Committed", "consistency": "Acked", "files": 2,
                           "bytes": 2048, "storedBytes": 1024});
    let skipped = json!({"outcome": "Skipped", "reason": "Empty"});
    let failed = json!({"outcome": "Failed", "reason": "NoSpace", "message": "/s is full"});
    for (outcome, status, text) in [
        (committed, 0, "committed (Acked, 2 files, 2.00Ki, 1.00Ki stored)"),
        (skipped, 6, "skipped (Empty)"),
        (failed, 1, "failed (NoSpace: /s is full)"),
    ] {
        let done = json!({"seq": 3, "outcome": outcome, "phase": "Running"});
        let agent = Fake::new(move |_| Answer::json(&done));
        let expected = format!("job/train is Running; checkpoint 3 {text}\n");
        check(&agent, &["checkpoint", "now", "--urgent", "job/train"], status, &expected, "");
        assert_eq!(agent.requests()[0].body, br#"{"urgent":true}"#);
    }
}

#[test]
fn verify_reads_every_checkpoint_that_has_data_and_fails_if_one_is_damaged() {
    let agent = Fake::new(|request| match request.line.as_str() {
        "GET /v1/jobs/train/checkpoints" => {
            let entry = |seq: u64, state: &str| {
                json!({"seq": seq, "attempt": 1, "epoch": 1, "cause": "Interval", "state": state,
                       "started": "2026-11-30T12:00:00Z", "files": 0, "bytes": 0, "storedBytes": 0})
            };
            Answer::json(&json!([entry(1, "Committed"), entry(2, "Failed"), entry(3, "Suspect")]))
        }
        "POST /v1/jobs/train/checkpoints/1/verify" => Answer::json(&json!({"seq": 1, "bytes": 17})),
        "POST /v1/jobs/train/checkpoints/3/verify" => {
            Answer::json(&json!({"seq": 3, "bytes": 17, "problems": ["frame 0 does not match"]}))
        }
        _ => Answer::problem(500, &request.line),
    });
    let expected = "\
checkpoint 1 is sound, 17B compared
checkpoint 3 is damaged: frame 0 does not match
";
    check(&agent, &["checkpoint", "verify", "train"], 1, expected, "");
}

#[test]
fn an_export_appears_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.tar.zst");
    let args = ["checkpoint", "export", "train", "7", "-O", file.to_str().unwrap()];

    let agent = Fake::new(|_| Answer::Broken(b"half of".to_vec()));
    assert_eq!(run(&agent, &args).status.code(), Some(3));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);

    std::fs::write(&file, "an older export").unwrap();
    let agent = Fake::new(|_| Answer::text("the archive"));
    check(&agent, &args, 0, &format!("{}: 11B\n", file.display()), "");
    assert_eq!(std::fs::read(&file).unwrap(), b"the archive");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    assert_eq!(agent.requests()[0].line, "GET /v1/jobs/train/checkpoints/7/export");

    check(&agent, &["checkpoint", "export", "train", "7"], 0, "the archive", "");
}

#[test]
fn a_restore_sends_an_absolute_directory() {
    let done = json!({"seq": 4, "reason": "5 is damaged", "to": "/x", "files": 1, "bytes": 17});
    let agent = Fake::new(move |_| Answer::json(&done));
    let expected = "checkpoint 4 restored to /x: 1 file, 17B; 5 is damaged\n";
    check(&agent, &["restore", "train", "--to", "sub"], 0, expected, "");
    let request = &agent.requests()[0];
    assert_eq!(request.line, "POST /v1/jobs/train/restore");
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    assert_eq!(body, json!({"to": std::env::current_dir().unwrap().join("sub")}));
}

#[test]
fn a_notice_says_how_long_is_left() {
    let agent = Fake::new(|_| Answer::Whole(204, Vec::new()));
    assert_eq!(run(&agent, &["notice", "reclaim", "--in", "2m"]).status.code(), Some(0));
    let request = &agent.requests()[0];
    assert_eq!(request.line, "POST /v1/notices");
    assert_eq!(request.body, br#"{"in":"2m","source":"nodusctl"}"#);
}

#[test]
fn events_are_a_line_each() {
    let wire = "\
: connected

data: {\"at\":\"2026-11-30T12:00:00Z\",\"event\":\"AttemptStarted\",\"attempt\":1}

data: {\"at\":\"2026-11-30T12:00:01Z\",\"event\":\"OfALaterVersion\"}

data: {\"at\":\"2026-11-30T12:00:02Z\",\"event\":\"Phase\",\"phase\":\"Succeeded\"}

";
    let agent = Fake::new(move |_| Answer::text(wire));
    let expected = "\
2026-11-30T12:00:00Z attempt 1 started
2026-11-30T12:00:02Z Succeeded
";
    check(&agent, &["events", "train"], 0, expected, "");
}
