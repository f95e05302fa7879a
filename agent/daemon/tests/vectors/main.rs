//! Plays the vectors of `protocol/vectors` against the events server and the coordinator.

#![allow(clippy::unwrap_used, reason = "a test may end at what it does not expect")]

mod agent;
mod player;
mod script;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use agent::Agent;
use player::Player;
use script::Script;
use tokio::task::JoinSet;

/// Where [`RELAY_TEST`] connects to.
const RELAY_SOCKET: &str = "NODUS_VECTORS_RELAY_SOCKET";

const RELAY_TEST: &str = "relay_of_another_process";

fn vectors() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../protocol/vectors");
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|kind| kind == "ndjson")).collect()
}

/// All at once, since most of a vector's time is waiting for what must not come; twice, since the
/// numbers of the checkpoints must not matter.
#[tokio::test]
async fn every_vector_holds() {
    let mut playing = JoinSet::new();
    let mut count = 0;
    for path in vectors() {
        for next_seq in [1, 4_000_000_000_000] {
            let path = path.clone();
            count += 1;
            playing.spawn(async move {
                let script = Script::read(&path);
                let dir = tempfile::TempDir::new().unwrap();
                let socket = dir.path().join("events.sock");
                let agent = Agent::start(&socket, next_seq).await;
                Player::new(&socket, agent).play(&script).await
            });
        }
    }
    assert!(count >= 2 * 30, "only {count} vectors were found");
    let results = playing.join_all().await;
    let failures: Vec<String> = results.into_iter().filter_map(Result::err).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Not a test: the second process of the vectors. Passes standard input to the socket, and what
/// comes from there to standard error, since the test harness writes to standard output.
#[test]
#[ignore = "run by the vectors that need another process"]
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
