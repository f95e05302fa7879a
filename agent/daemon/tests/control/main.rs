//! The control API over its socket, with a real engine and real jobs behind it.
// The lint knows test functions only, not what they share.
#![allow(clippy::unwrap_used)]

mod agent;
mod client;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use agent::{Agent, until};
use client::{Answer, Client, RELAY_SOCKET, bounded};
use hyper::Method;
use nodus_protocol::checkpoint::{CheckpointInfo, Outcome};
use nodus_protocol::control::{
    CheckpointDone, JobDetail, JobInfo, Problem, RestoreDone, VerifyDone,
};
use nodus_protocol::job::Phase;
use serde_json::json;

/// Writes a line and a file, and goes on for long.
const SAVES: &str = "echo started; echo weights > $NODUS_STATE_DIR/w; sleep 600";

fn problem(answer: &Answer) -> Problem {
    let content_type = answer.header("content-type");
    assert_eq!(content_type, "application/problem+json", "{answer:?}");
    let problem: Problem = answer.json();
    assert_eq!(problem.status, answer.status, "{problem:?}");
    problem
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_from_its_submission_to_its_end() {
    let agent = Agent::start().await;
    let mut client = agent.client().await;
    let made = client.post("/v1/jobs", agent.submission("train", SAVES)).await;
    assert_eq!(made.status, 201, "{made:?}");
    assert_eq!(made.json::<JobInfo>().name.as_str(), "train");
    let again = client.post("/v1/jobs", agent.submission("train", SAVES)).await;
    assert_eq!((again.status, problem(&again).kind.as_str()), (409, "urn:nodus:problem:conflict"));
    agent.until_saved("train").await;

    let listed: Vec<JobInfo> = client.get("/v1/jobs").await.json();
    assert_eq!(listed.len(), 1);
    let detail: JobDetail = client.get("/v1/jobs/train").await.json();
    assert_eq!(detail.info.phase, Phase::Running);

    let done: CheckpointDone = client.post("/v1/jobs/train/checkpoint", json!({})).await.json();
    assert!(matches!(done.outcome, Some(Outcome::Committed(_))), "{done:?}");
    let seq = done.seq.unwrap();
    let all: Vec<CheckpointInfo> = client.get("/v1/jobs/train/checkpoints").await.json();
    assert!(all.iter().any(|info| info.seq == seq), "{all:?}");
    let one = format!("/v1/jobs/train/checkpoints/{seq}");
    assert_eq!(client.get(&one).await.json::<CheckpointInfo>().seq, seq);
    let verified: VerifyDone = client.post(&format!("{one}/verify"), json!({})).await.json();
    assert!(verified.problems.is_empty() && verified.bytes > 0, "{verified:?}");
    let unknown = client.get("/v1/jobs/train/checkpoints/999999").await;
    assert_eq!((unknown.status, problem(&unknown).status), (404, 404));

    let exported = client.get(&format!("{one}/export")).await;
    assert_eq!(exported.header("content-type"), "application/zstd");
    assert_eq!(exported.body[..4], [0x28, 0xb5, 0x2f, 0xfd], "not a zstd frame");
    let to = agent.path("restored");
    let wanted = json!({"to": to, "seq": seq});
    let restored: RestoreDone = client.post("/v1/jobs/train/restore", wanted).await.json();
    assert_eq!(restored.seq, seq);
    assert_eq!(found_below(&to, "w").as_deref(), Some("weights\n"));

    let suspended: CheckpointDone = client.post("/v1/jobs/train/suspend", json!({})).await.json();
    assert_eq!(suspended.phase, Phase::Suspended);
    let resumed = client.post("/v1/jobs/train/resume", json!({})).await;
    assert_eq!(resumed.status, 200, "{resumed:?}");
    let stopped: CheckpointDone = client.post("/v1/jobs/train/stop", json!({})).await.json();
    assert!(stopped.phase.is_finished(), "{stopped:?}");
    assert_eq!(client.request(Method::DELETE, "/v1/jobs/train", None).await.status, 204);
    assert_eq!(client.get("/v1/jobs/train").await.status, 404);
}

/// The content of the file of this name, wherever below the directory it is.
fn found_below(dir: &Path, name: &str) -> Option<String> {
    for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            if let Some(found) = found_below(&path, name) {
                return Some(found);
            }
        } else if entry.file_name() == name {
            return Some(std::fs::read_to_string(path).unwrap());
        }
    }
    None
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_is_given_as_it_is_and_followed_to_its_end() {
    let agent = Agent::start().await;
    let mut client = agent.client().await;
    let script = "echo one; until [ -e $NODUS_STATE_DIR/go ]; do sleep 0.05; done; echo two";
    client.post("/v1/jobs", agent.submission("talk", script)).await;
    let mut follower = agent.client().await;
    let mut followed = follower.open("/v1/jobs/talk/logs?follow=true").await;
    assert_eq!(bounded(followed.until("one\n")).await, "one\n");
    assert_eq!(client.get("/v1/jobs/talk/logs").await.text(), "one\n");
    std::fs::write(agent.state_dir("talk").join("go"), "").unwrap();
    assert_eq!(bounded(followed.rest()).await, "two\n");
    assert_eq!(client.get("/v1/jobs/talk/logs?attempt=1").await.text(), "one\ntwo\n");
    let missing = client.get("/v1/jobs/talk/logs?attempt=7").await;
    assert!(problem(&missing).detail.contains("no attempt 7"), "{missing:?}");
    let odd = client.get("/v1/jobs/talk/logs?attempt=first").await;
    assert_eq!(problem(&odd).status, 422);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_come_while_they_happen() {
    let agent = Agent::start().await;
    let mut client = agent.client().await;
    client.post("/v1/jobs", agent.submission("train", SAVES)).await;
    agent.until_saved("train").await;
    let mut watcher = agent.client().await;
    let mut events = watcher.open("/v1/jobs/train/events").await;
    bounded(events.until("\n\n")).await;
    client.post("/v1/jobs/train/checkpoint", json!({})).await;
    let text = bounded(events.until("CheckpointEnded")).await;
    assert!(text.starts_with("data: {") && text.contains("CheckpointCaptured"), "{text}");
    agent.stop().await;
    bounded(events.rest()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_a_request_is_a_problem() {
    let agent = Agent::start().await;
    let mut client = agent.client().await;
    assert_eq!(client.get("/healthz").await.json::<serde_json::Value>()["status"], "ok");
    for (path, status, part) in [
        ("/v2/jobs", 404, "/v1"),
        ("/v1/jobs/none", 404, "no job none"),
        ("/v1/jobs/-x", 422, "invalid job name"),
        ("/v1/jobs/none/checkpoints/first", 422, "first"),
        ("/v1/notices", 405, "GET"),
    ] {
        let answer = client.get(path).await;
        let problem = problem(&answer);
        assert_eq!(answer.status, status, "{path}: {problem:?}");
        assert!(problem.detail.contains(part), "{path}: {problem:?}");
    }
    for (body, part) in [
        (json!({"spec": {"name": "x", "command": []}}), "command"),
        (json!({"spec": {"name": "x", "command": ["true"]}, "typo": 1}), "typo"),
        (json!([]), "invalid"),
    ] {
        let answer = client.post("/v1/jobs", body).await;
        let problem = problem(&answer);
        assert_eq!(problem.status, 422, "{problem:?}");
        assert!(problem.detail.contains(part), "{problem:?}");
    }
    let large = client.post("/v1/jobs", json!({"x": "y".repeat(agent::BODY)})).await;
    assert_eq!(problem(&large).status, 413);
    let notice = client_notice(&mut agent.client().await).await;
    let root = rustix::process::geteuid().is_root();
    assert_eq!(notice.status, if root { 202 } else { 403 }, "{notice:?}");
}

async fn client_notice(client: &mut Client) -> Answer {
    client.post("/v1/notices", json!({"in": "2m", "source": "test"})).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_see_and_control_their_own_jobs_only() {
    if !rustix::process::geteuid().is_root() {
        return; // Only root can act as another user.
    }
    let agent = Agent::start().await;
    let mut root = agent.client().await;
    root.post("/v1/jobs", agent.submission("secret", SAVES)).await;
    agent.until_saved("secret").await;
    let mut other = agent.client_of_another_user();
    assert!(other.get("/v1/jobs").await.json::<Vec<JobInfo>>().is_empty());
    for (method, path) in [
        (Method::GET, "/v1/jobs/secret"),
        (Method::DELETE, "/v1/jobs/secret"),
        (Method::POST, "/v1/jobs/secret/suspend"),
        (Method::POST, "/v1/jobs/secret/resume"),
        (Method::POST, "/v1/jobs/secret/stop"),
        (Method::POST, "/v1/jobs/secret/checkpoint"),
        (Method::GET, "/v1/jobs/secret/logs"),
        (Method::GET, "/v1/jobs/secret/events"),
        (Method::GET, "/v1/jobs/secret/checkpoints"),
        (Method::GET, "/v1/jobs/secret/checkpoints/1"),
        (Method::DELETE, "/v1/jobs/secret/checkpoints/1"),
        (Method::POST, "/v1/jobs/secret/checkpoints/1/verify"),
        (Method::GET, "/v1/jobs/secret/checkpoints/1/export"),
    ] {
        let answer = other.request(method.clone(), path, None).await;
        // The same as of a job that does not exist.
        assert_eq!(problem(&answer).status, 404, "{method} {path}");
    }
    let restore = json!({"to": agent.path("stolen")});
    assert_eq!(other.post("/v1/jobs/secret/restore", restore).await.status, 404);
    assert_eq!(client_notice(&mut other).await.status, 403);
    let detail: JobDetail = root.get("/v1/jobs/secret").await.json();
    assert_eq!(detail.info.phase, Phase::Running);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_sends_nothing_delays_nobody_and_is_let_go() {
    let agent = Agent::start().await;
    let silent: Vec<_> = (0..100).map(|_| UnixStream::connect(agent.socket()).unwrap()).collect();
    let mut half = UnixStream::connect(agent.socket()).unwrap();
    half.write_all(b"GET /v1/jobs HTTP/1.1\r\nhost: x\r\n").unwrap();
    let mut client = agent.client().await;
    assert_eq!(client.get("/v1/jobs").await.status, 200);
    half.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let gone = tokio::task::spawn_blocking(move || {
        let mut rest = Vec::new();
        half.read_to_end(&mut rest)
    });
    // Whatever it is told, the connection ends.
    let _ = bounded(gone).await.unwrap();
    drop(silent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopping_agent_ends_what_has_no_end() {
    let agent = Agent::start().await;
    let mut client = agent.client().await;
    client.post("/v1/jobs", agent.submission("train", SAVES)).await;
    agent.until_saved("train").await;
    let mut follower = agent.client().await;
    let mut log = follower.open("/v1/jobs/train/logs?follow=true").await;
    bounded(log.until("started\n")).await;
    agent.stop().await;
    assert_eq!(bounded(log.rest()).await, "");
    until("the socket is gone", || !agent.socket().exists()).await;
}

/// Not a test: a client that is another process, as another user. Passes standard input to the
/// socket, and what comes from there to standard error, since the test harness writes to standard
/// output.
#[test]
#[ignore = "run by the tests that need another user"]
fn relay_of_another_process() {
    let Some(path) = std::env::var_os(RELAY_SOCKET) else { return };
    let mut socket = UnixStream::connect(path).unwrap();
    let mut answers = socket.try_clone().unwrap();
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = answers.read(&mut bytes) {
            std::io::stderr().write_all(&bytes[..count]).unwrap();
        }
    });
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = std::io::stdin().read(&mut bytes) {
        socket.write_all(&bytes[..count]).unwrap();
    }
}
