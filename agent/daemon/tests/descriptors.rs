//! The events server without a descriptor left. Alone in its process, whose limit it lowers.

use std::fs::File;
use std::time::Duration;

use nodus_agent::events::{ClientEvent, EventsHub, Limits, Peer, Via, Whose};
use nodus_agent::socket::{Bound, Place};
use nodus_protocol::JobName;
use rustix::process::{Resource, Rlimit, setrlimit};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;

const SOON: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_client_that_finds_no_descriptor_left_is_served_once_there_is_one() {
    let dir = tempfile::TempDir::new().unwrap();
    let job: JobName = "train".parse().unwrap();
    let resolved = job.clone();
    let resolver = move |_: Peer, _: &Via| Whose::Job(resolved.clone());
    let hub = EventsHub::new(Box::new(resolver), Limits::default());
    let mut events = hub.add_job(job);
    let path = dir.path().join("events.sock");
    let place = Place { path: path.clone(), mode: 0o600, owner: None, dir_mode: 0o700 };
    let bound = Bound::bind(place).await.unwrap();
    let server = hub.clone();
    tokio::spawn(async move { server.serve(bound, Via::Common, CancellationToken::new()).await });

    setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum: Some(64) }).unwrap();
    let mut taken: Vec<File> = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        taken.push(file);
    }
    taken.pop(); // For the client; none is left for the server's end.
    let mut client = UnixStream::connect(&path).await.unwrap();
    client.write_all(b"{\"type\":\"checkpoint.subscribe\"}\n").await.unwrap();
    let nothing = tokio::time::timeout(Duration::from_millis(700), events.recv()).await;
    assert!(nothing.is_err(), "the server had a descriptor: {nothing:?}");

    drop(taken);
    let heard = tokio::time::timeout(SOON, events.recv()).await.unwrap().unwrap();
    assert!(matches!(heard, ClientEvent::Message { .. }));
}
