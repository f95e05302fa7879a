//! What an engine does with its jobs when something fails in the middle.
// The lint knows test functions only, not what they share.
#![allow(clippy::unwrap_used)]

mod node;

use std::fs;
use std::time::Duration;

use jiff::Timestamp;
use node::{LONG, Node, caller, name, submission};
use nodus_agent::job::Reclaim;
use nodus_checkpoint::store::JobStore;
use nodus_protocol::checkpoint::{Cause, CheckpointState, FailureReason, Outcome};
use nodus_protocol::job::{AttemptEnd, Phase, StopReason};
use serde_json::json;
use tokio::time::timeout;

/// Counts its attempts in a file, says so, and goes on for long.
const COUNTS: &str = "n=$(cat $NODUS_STATE_DIR/n 2>/dev/null || echo 0); \
    echo $((n + 1)) > $NODUS_STATE_DIR/n; exec sleep 600";

async fn within<T>(future: impl Future<Output = T>) -> T {
    timeout(LONG, future).await.expect("it is answered")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_restored_over_files_that_could_not_be_stored() {
    let node = Node::start().await;
    node.submit("train", COUNTS, "");
    node.until_written("train", "n", "1").await;
    node.until_phase("train", Phase::Running).await;
    let (caller, train) = (caller(), name("train"));
    within(node.engine.checkpoint(&caller, &train, false)).await.unwrap();

    // Newer than any checkpoint, and the store is away when the attempt ends.
    fs::write(node.state("train").join("n"), "41\n").unwrap();
    let (store, away) = (node.store(), node.path("away"));
    fs::rename(&store, &away).unwrap();
    let done = within(node.engine.suspend(&caller, &train)).await.unwrap();
    assert_eq!(done.phase, Phase::Suspended);
    assert!(matches!(done.outcome, Some(Outcome::Failed { .. })), "{done:?}");
    let conditions = node.detail("train").conditions;
    assert!(conditions.iter().any(|one| one.name == "FilesNotStored"), "{conditions:?}");

    fs::rename(&away, &store).unwrap();
    within(node.engine.resume(&caller, &train)).await.unwrap();
    node.until_written("train", "n", "42").await;
    node.until_phase("train", Phase::Running).await;
    let detail = node.detail("train");
    assert!(!detail.conditions.iter().any(|one| one.name == "FilesNotStored"), "{detail:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_lost_everything_is_no_reason_to_start_anew_without_a_word() {
    let node = Node::start().await;
    node.submit("train", COUNTS, "");
    node.until_written("train", "n", "1").await;
    node.until_phase("train", Phase::Running).await;
    let (caller, train) = (caller(), name("train"));
    within(node.engine.suspend(&caller, &train)).await.unwrap();
    let (store, away) = (node.store(), node.path("away"));
    fs::rename(&store, &away).unwrap();
    fs::remove_dir_all(node.state("train")).unwrap();
    within(node.engine.resume(&caller, &train)).await.unwrap();
    let says = |detail: &nodus_protocol::control::JobDetail| {
        detail.conditions.iter().any(|one| one.name == "StoreUnavailable")
    };
    node.until("train", says).await;
    assert_eq!(node.detail("train").info.attempt, 1);
    assert!(!store.exists(), "nothing is made where it was");
    fs::rename(&away, &store).unwrap();
    node.until_written("train", "n", "2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exit_checkpoint_is_taken_by_the_next_agent() {
    let mut node = Node::start().await;
    node.submit("train", "echo 1 > $NODUS_STATE_DIR/w; exit 3", "maxRetries: 0");
    node.until_phase("train", Phase::Failed).await;
    node.restart(|node| {
        fs::write(node.state("train").join("w"), "2").unwrap();
        node.set_standing("train", json!({"at": "Ending"}));
    })
    .await;
    node.until_phase("train", Phase::Failed).await;
    let all = node.engine.checkpoints(&caller(), &name("train")).await.unwrap();
    let newest = all.last().unwrap();
    assert_eq!((newest.cause, newest.state), (Cause::Exit, CheckpointState::Committed), "{all:#?}");
    assert_eq!(newest.seq, 2, "{all:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_obeyed_while_the_agent_was_away_is_suspended_and_not_done() {
    let mut node = Node::start().await;
    node.submit("train", "echo 1 > $NODUS_STATE_DIR/w; exit 0", "");
    node.until_phase("train", Phase::Succeeded).await;
    node.restart(|node| {
        node.set_standing("train", json!({"at": "Running", "wish": "Suspend", "told": true}));
    })
    .await;
    node.until_phase("train", Phase::Suspended).await;
    assert_eq!(node.detail("train").attempts[0].end, Some(AttemptEnd::Suspended));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspend_is_kept_over_a_restart_before_the_attempt_was_started() {
    let mut node = Node::start().await;
    node.submit("train", "exit 3", "maxRetries: 0");
    node.until_phase("train", Phase::Failed).await;
    node.restart(|node| {
        node.set_standing("train", json!({"at": "Running", "wish": "Suspend"}));
        fs::remove_dir_all(node.path("records/train/attempts/1")).unwrap();
    })
    .await;
    node.until_phase("train", Phase::Suspended).await;
    assert_eq!(node.detail("train").info.attempt, 0, "it never ran");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_that_a_node_was_down_is_none_of_the_job() {
    let mut node = Node::start().await;
    node.submit("train", "exec sleep 600", "maxWallTime: 1h");
    node.until_phase("train", Phase::Running).await;
    within(node.engine.suspend(&caller(), &name("train"))).await.unwrap();
    node.restart(|node| {
        // As if it had been started a day ago, seen last a minute later, and the system booted since.
        let records = node.path("records/train");
        let path = records.join("job.json");
        let mut record: serde_json::Value =
            serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let day_ago = Timestamp::now() - Duration::from_secs(86_400);
        record["standing"] = json!({"at": "Running"});
        record["attempts"][0]["started"] = json!(day_ago.to_string());
        record["attempts"][0]["ended"] = json!(null);
        record["attempts"][0]["end"] = json!(null);
        fs::write(&path, record.to_string()).unwrap();
        let attempt = records.join("attempts/1");
        fs::remove_file(attempt.join("exit.json")).unwrap();
        let shim = attempt.join("shim.json");
        let mut boot: serde_json::Value =
            serde_json::from_slice(&fs::read(&shim).unwrap()).unwrap();
        boot["boot"] = json!("another");
        fs::write(&shim, boot.to_string()).unwrap();
        let seen = std::time::SystemTime::now() - Duration::from_secs(86_400 - 60);
        for file in [path, attempt.join("output.log")] {
            fs::File::options().write(true).open(file).unwrap().set_modified(seen).unwrap();
        }
    })
    .await;
    node.until("train", |detail| detail.info.attempt == 2).await;
    assert!(node.detail("train").wall_time < Duration::from_secs(600), "the outage counts");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notice_reaches_all_jobs_at_once() {
    let node = Node::start().await;
    // Subscribes, and never answers.
    let deaf = r#"exec python3 -c '
import os, socket, time
s = socket.socket(socket.AF_UNIX)
s.connect(os.environ["NODUS_EVENTS_SOCKET"])
s.sendall(b"{\"type\":\"checkpoint.subscribe\"}\n")
time.sleep(600)'"#;
    node.submit("a-deaf", deaf, "");
    node.submit("b-quick", COUNTS, "");
    node.until("a-deaf", |detail| detail.subscribers == 1).await;
    node.until_written("b-quick", "n", "1").await;
    node.until_phase("b-quick", Phase::Running).await;
    let engine = node.engine.clone();
    let notice = Reclaim::notice("test", Some(Duration::from_secs(3600)));
    let told = tokio::spawn(async move { engine.reclaim(&notice).await });
    node.until("b-quick", |detail| detail.last_outcome.is_some()).await;
    assert!(node.detail("a-deaf").last_outcome.is_none());
    told.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notice_may_be_as_far_away_as_anybody_can_say() {
    let node = Node::start().await;
    node.submit("train", COUNTS, "");
    node.until_written("train", "n", "1").await;
    node.until_phase("train", Phase::Running).await;
    within(node.engine.reclaim(&Reclaim::notice("test", Some(Duration::MAX)))).await;
    within(node.engine.checkpoint(&caller(), &name("train"), false)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fenced_attempt_is_ended_and_its_job_says_so() {
    let node = Node::start().await;
    node.submit("train", COUNTS, "");
    node.until_written("train", "n", "1").await;
    node.until_phase("train", Phase::Running).await;
    let store = JobStore::open(&node.store(), &name("train")).unwrap().unwrap();
    store.begin_epoch(9, 100, "elsewhere", Timestamp::now()).unwrap();
    let done = within(node.engine.checkpoint(&caller(), &name("train"), false)).await.unwrap();
    let reason = match done.outcome {
        Some(Outcome::Failed { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(reason, FailureReason::Fenced);
    node.until_phase("train", Phase::Failed).await;
    let detail = node.detail("train");
    assert_eq!(detail.info.reason, Some(StopReason::Fenced));
    assert!(detail.attempts[0].ended.is_some());
    // What the other one stored is not ours to delete.
    within(node.engine.delete(&caller(), &name("train"))).await.unwrap();
    assert_eq!(store.epochs().unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_checkpoints_of_another_user_are_neither_shown_nor_deleted() {
    let node = Node::start().await;
    let other = caller().owner.uid + 4242;
    let store = JobStore::create(&node.store(), &name("train"), other, Timestamp::now()).unwrap();
    node.submit("train", COUNTS, "");
    node.until_phase("train", Phase::Failed).await;
    assert_eq!(node.detail("train").info.reason, Some(StopReason::RestoreFailed));
    let refused = node.engine.checkpoints(&caller(), &name("train")).await.unwrap_err();
    assert!(refused.to_string().contains("another user"), "{refused}");
    within(node.engine.delete(&caller(), &name("train"))).await.unwrap();
    assert!(store.dir().join("job.json").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_name_is_free_as_soon_as_that_is_said() {
    let node = Node::start().await;
    for _ in 0..10 {
        node.submit("train", "exec sleep 600", "");
        within(node.engine.delete(&caller(), &name("train"))).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_submissions_at_once_one_gets_the_name() {
    let node = Node::start().await;
    let barrier = std::sync::Barrier::new(8);
    let runtime = tokio::runtime::Handle::current();
    let accepted = std::thread::scope(|scope| {
        let submit = || {
            let _in_runtime = runtime.enter();
            barrier.wait();
            node.engine.submit(&caller(), submission("train", "exec sleep 600", "")).is_ok()
        };
        let all: Vec<_> = (0..8).map(|_| scope.spawn(submit)).collect();
        all.into_iter().filter(|_| true).map(|one| one.join().unwrap()).filter(|ok| *ok).count()
    });
    assert_eq!(accepted, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_that_failed_can_be_asked_for_again() {
    let node = Node::start().await;
    node.submit("train", COUNTS, "");
    node.until_written("train", "n", "1").await;
    node.until_phase("train", Phase::Running).await;
    let (caller, train) = (caller(), name("train"));
    within(node.engine.suspend(&caller, &train)).await.unwrap();
    let (store, away) = (node.store(), node.path("away"));
    fs::rename(&store, &away).unwrap();
    let refused = within(node.engine.delete(&caller, &train)).await.unwrap_err();
    assert!(refused.to_string().contains("cannot remove"), "{refused}");
    fs::rename(&away, &store).unwrap();
    within(node.engine.delete(&caller, &train)).await.unwrap();
    assert!(!store.join("jobs/train").exists(), "its checkpoints are gone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_cursor_of_a_restartable_job_is_handed_over() {
    let node = Node::start().await;
    let script = r#"echo "$NODUS_CURSOR_COMPLETED" > $NODUS_STATE_DIR/cursor
        trap 'echo "nodus.event {\"type\":\"progress\",\"completed\":7}"; exit 0' TERM
        while :; do sleep 0.05; done"#;
    node.submit("items", script, "continuity: Restartable");
    node.until_written("items", "cursor", "0").await;
    node.until_phase("items", Phase::Running).await;
    let (caller, items) = (caller(), name("items"));
    within(node.engine.suspend(&caller, &items)).await.unwrap();
    within(node.engine.resume(&caller, &items)).await.unwrap();
    node.until_written("items", "cursor", "7").await;
    let tried = node.engine.checkpoints(&caller, &items).await.unwrap();
    assert!(tried.is_empty(), "its files are not copied: {tried:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn used_up_time_ends_a_running_attempt() {
    let node = Node::start().await;
    node.submit("train", COUNTS, "maxWallTime: 2s");
    node.until_phase("train", Phase::Failed).await;
    let detail = node.detail("train");
    assert_eq!(detail.info.reason, Some(StopReason::WallTimeExceeded), "{detail:#?}");
    assert!(detail.info.latest_checkpoint.is_some(), "what it had saved is kept");
}
