use std::path::PathBuf;

use nodus_protocol::JobName;
use nodus_protocol::event::{Ack, AckStatus, AgentMessage, ProgramMessage, Progress, Subscription};
use nodus_protocol::line::MAX_LINE;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::{Duration, Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::socket::{Bound, Place};

const SOON: Duration = Duration::from_secs(20);

const SUBSCRIBE: &str = "{\"type\":\"checkpoint.subscribe\"}\n";

/// A hub with the jobs `a` and `b`, each with a socket of its own, and a common socket whose
/// clients are strangers.
struct Server {
    dir: TempDir,
    hub: EventsHub,
    a: mpsc::Receiver<ClientEvent>,
    b: mpsc::Receiver<ClientEvent>,
}

impl Server {
    async fn start(limits: Limits) -> Self {
        let dir = TempDir::new().unwrap();
        let resolver = |_: Peer, via: &Via| match via {
            Via::Common => Whose::Nobody,
            Via::Job(name) => Whose::Job(name.clone()),
        };
        let hub = EventsHub::new(Box::new(resolver), limits);
        let (a, b) = (hub.add_job(name("a")), hub.add_job(name("b")));
        let server = Self { dir, hub, a, b };
        for job in ["a", "b"] {
            server.hub.bind_job_socket(&name(job), server.place(job)).await.unwrap();
        }
        let bound = Bound::bind(server.place("common")).await.unwrap();
        let hub = server.hub.clone();
        tokio::spawn(async move { hub.serve(bound, Via::Common, CancellationToken::new()).await });
        server
    }

    fn path(&self, socket: &str) -> PathBuf {
        self.dir.path().join(socket)
    }

    fn place(&self, socket: &str) -> Place {
        Place { path: self.path(socket), mode: 0o600, owner: None, dir_mode: 0o700 }
    }

    async fn connect(&self, socket: &str) -> Client {
        Client { stream: BufReader::new(UnixStream::connect(self.path(socket)).await.unwrap()) }
    }

    /// Connects and subscribes to `a`.
    async fn subscriber(&mut self) -> (Client, ClientId) {
        let mut client = self.connect("a").await;
        client.send(SUBSCRIBE).await;
        let (id, message) = message(&mut self.a).await;
        assert!(matches!(message, ProgramMessage::Subscribe(_)));
        (client, id)
    }
}

struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    async fn send(&mut self, text: impl AsRef<[u8]>) {
        self.stream.get_mut().write_all(text.as_ref()).await.unwrap();
    }

    /// The next line without its end; empty at the end of the connection.
    async fn line(&mut self) -> String {
        let mut line = String::new();
        timeout(SOON, self.stream.read_line(&mut line)).await.unwrap().unwrap();
        line.trim_end().to_owned()
    }

    async fn error(&mut self) -> String {
        match serde_json::from_str(&self.line().await).unwrap() {
            AgentMessage::Error { message } => message,
            other => panic!("not an error: {other:?}"),
        }
    }
}

fn name(name: &str) -> JobName {
    name.parse().unwrap()
}

async fn event(events: &mut mpsc::Receiver<ClientEvent>) -> ClientEvent {
    timeout(SOON, events.recv()).await.unwrap().unwrap()
}

async fn message(events: &mut mpsc::Receiver<ClientEvent>) -> (ClientId, ProgramMessage) {
    match event(events).await {
        ClientEvent::Message { client, peer, message } => {
            assert_eq!(peer.pid, std::process::id());
            assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
            (client, message)
        }
        left @ ClientEvent::Left { .. } => panic!("not a message: {left:?}"),
    }
}

async fn left(events: &mut mpsc::Receiver<ClientEvent>) -> ClientId {
    match event(events).await {
        ClientEvent::Left { client } => client,
        other @ ClientEvent::Message { .. } => panic!("not the end: {other:?}"),
    }
}

fn ack(seq: u64) -> ProgramMessage {
    ProgramMessage::Ack(Ack { seq, status: AckStatus::Saved, message: None, step: None })
}

fn progress(completed: u64) -> ProgramMessage {
    ProgramMessage::Progress(Progress { completed, total: None })
}

#[tokio::test]
async fn a_request_and_its_ack() {
    let mut server = Server::start(Limits::default()).await;
    let (mut client, id) = server.subscriber().await;
    assert!(server.hub.send(id, &AgentMessage::request(7, false, None)));
    assert_eq!(
        client.line().await,
        r#"{"type":"checkpoint.request","seq":7,"requestId":"7","urgent":false}"#
    );
    client.send("{\"type\":\"checkpoint.ack\",\"seq\":7}\n").await;
    assert_eq!(message(&mut server.a).await, (id, ack(7)));
    drop(client);
    assert_eq!(left(&mut server.a).await, id);
    assert!(!server.hub.send(id, &AgentMessage::request(8, false, None)));
}

#[tokio::test]
async fn a_stranger_is_refused_and_told() {
    let server = Server::start(Limits::default()).await;
    let mut stranger = server.connect("common").await;
    stranger.send(SUBSCRIBE).await;
    let error = stranger.error().await;
    assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
    assert_eq!(stranger.line().await, "");
}

#[tokio::test]
async fn a_client_whose_attempt_is_being_started_is_waited_for() {
    let dir = TempDir::new().unwrap();
    let asked = std::sync::atomic::AtomicU32::new(0);
    let resolver =
        move |_: Peer, _: &Via| match asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0..5 => Whose::Unsettled,
            _ => Whose::Job(name("a")),
        };
    let hub = EventsHub::new(Box::new(resolver), Limits::default());
    let mut a = hub.add_job(name("a"));
    let path = dir.path().join("a");
    let place = Place { path: path.clone(), mode: 0o600, owner: None, dir_mode: 0o700 };
    hub.bind_job_socket(&name("a"), place).await.unwrap();
    let mut client = UnixStream::connect(path).await.unwrap();
    client.write_all(SUBSCRIBE.as_bytes()).await.unwrap();
    assert!(matches!(message(&mut a).await.1, ProgramMessage::Subscribe(_)));
}

#[tokio::test]
async fn c63_the_same_messages_however_they_are_cut() {
    let mut server = Server::start(Limits::default()).await;
    let acks = [
        r#"{"type":"checkpoint.ack","seq":1,"note":"Ünïcödé"}"#,
        r#"{"type":"checkpoint.ack","seq":2}"#,
    ];
    let lf = format!("{SUBSCRIBE}{}\n{}\n", acks[0], acks[1]);
    for text in [lf.clone(), lf.replace('\n', "\r\n"), lf.replace('\n', "\n\n\r\n")] {
        for piece in [1, 7, text.len()] {
            let mut client = server.connect("a").await;
            for bytes in text.as_bytes().chunks(piece) {
                client.send(bytes).await;
                tokio::task::yield_now().await;
            }
            let (id, first) = message(&mut server.a).await;
            assert_eq!(first, ProgramMessage::Subscribe(Subscription::default()));
            assert_eq!(message(&mut server.a).await, (id, ack(1)));
            assert_eq!(message(&mut server.a).await, (id, ack(2)));
            client.send(acks[1]).await; // Without its end: not executed.
            drop(client);
            assert_eq!(left(&mut server.a).await, id);
        }
    }
}

#[tokio::test]
async fn c63_what_is_not_understood_is_answered_or_ignored() {
    let mut server = Server::start(Limits::default()).await;
    let mut client = server.connect("a").await;
    client.send("nonsense\n").await;
    assert!(client.error().await.contains("not a JSON object"));
    client.send(b"{\"type\":\"checkpoint.ack\"}\n\xff\n").await;
    assert!(client.error().await.contains("\"seq\""));
    assert!(client.error().await.contains("not a JSON object"));
    client.send("{\"type\":\"checkpoint.someday\",\"x\":1}\n").await;
    client.send("{\"type\":\"progress\",\"completed\":3,\"x\":1}\n").await;
    assert_eq!(message(&mut server.a).await.1, progress(3));
}

#[tokio::test]
async fn c64_an_endless_line_ends_the_connection() {
    let mut server = Server::start(Limits::default()).await;
    let mut endless = server.connect("a").await;
    endless.send(SUBSCRIBE).await;
    let (id, _) = message(&mut server.a).await;
    let chunk = vec![b'a'; 1 << 20];
    let mut sent = 0_usize;
    while sent < 1 << 30 {
        // Ends with a broken pipe, once the agent has closed.
        match timeout(SOON, endless.stream.get_mut().write(&chunk)).await.unwrap() {
            Ok(count) => sent += count,
            Err(_) => break,
        }
    }
    assert!(sent < 1 << 30, "the agent took a gigabyte without a line end");
    assert!(endless.error().await.contains("65536"));
    assert_eq!(left(&mut server.a).await, id);

    // Two long lines in one write are within the limit.
    let filler = "b".repeat(MAX_LINE * 9 / 10);
    let line = format!("{{\"type\":\"progress\",\"completed\":1,\"x\":\"{filler}\"}}\n");
    let mut legal = server.connect("a").await;
    legal.send(format!("{line}{line}")).await;
    assert_eq!(message(&mut server.a).await.1, progress(1));
    assert_eq!(message(&mut server.a).await.1, progress(1));
    legal.send(format!("{{\"type\":\"progress\",\"x\":{}\n", "[".repeat(60_000))).await;
    assert!(legal.error().await.contains("not a JSON object"));
    legal.send("{\"type\":\"progress\",\"completed\":2}\n").await;
    assert_eq!(message(&mut server.a).await.1, progress(2));
}

#[tokio::test]
async fn c65_a_client_that_is_gone_does_no_harm() {
    let mut server = Server::start(Limits::default()).await;
    let (client, id) = server.subscriber().await;
    let half = client.stream.into_inner().into_std().unwrap();
    half.shutdown(std::net::Shutdown::Read).unwrap();
    // Its queue takes the first one; writing it finds out.
    server.hub.send(id, &AgentMessage::request(1, false, None));
    assert_eq!(left(&mut server.a).await, id);
    assert!(!server.hub.send(id, &AgentMessage::request(2, false, None)));

    let (client, id) = server.subscriber().await;
    drop(client);
    server.hub.send(id, &AgentMessage::request(3, false, None));
    assert_eq!(left(&mut server.a).await, id);
    let (mut client, id) = server.subscriber().await;
    assert!(server.hub.send(id, &AgentMessage::request(4, false, None)));
    assert!(client.line().await.contains("\"seq\":4"));
}

#[tokio::test]
async fn c66_a_client_that_does_not_read_is_dropped_and_delays_nobody() {
    let mut server = Server::start(Limits::default()).await;
    let (_silent, silent_id) = server.subscriber().await;
    let mut other = server.connect("b").await;
    other.send(SUBSCRIBE).await;
    let (other_id, _) = message(&mut server.b).await;
    let mut delivered = 0;
    for seq in 0..10_000 {
        delivered += u32::from(server.hub.send(silent_id, &AgentMessage::Captured { seq }));
        if seq % 1000 == 0 {
            let start = Instant::now();
            server.hub.send(other_id, &AgentMessage::request(seq, false, None));
            assert!(other.line().await.contains("request"));
            assert!(start.elapsed() < Duration::from_millis(1500));
        }
    }
    assert!(delivered < 10_000, "everything was queued");
    assert_eq!(left(&mut server.a).await, silent_id);
    assert!(!server.hub.send(silent_id, &AgentMessage::Captured { seq: 1 }));
}

/// A few messages that do not fit the socket are not waited for longer than the write timeout.
#[tokio::test]
async fn c66_a_message_that_cannot_be_written_in_time_ends_the_connection() {
    let limits = Limits { write_timeout: Duration::from_millis(200), ..Limits::default() };
    let mut server = Server::start(limits).await;
    let (_silent, id) = server.subscriber().await;
    let message = "x".repeat(900 << 10);
    assert!(server.hub.send(id, &AgentMessage::Error { message }));
    assert_eq!(left(&mut server.a).await, id);
}

#[tokio::test]
async fn c66_bytes_are_bounded_as_well_as_messages() {
    let mut server = Server::start(Limits::default()).await;
    let (_silent, id) = server.subscriber().await;
    let message = AgentMessage::Error { message: "x".repeat(600 << 10) };
    assert!(server.hub.send(id, &message));
    assert!(!server.hub.send(id, &message));
    assert_eq!(left(&mut server.a).await, id);
}

#[tokio::test]
async fn a_job_that_does_not_listen_delays_no_other() {
    let limits = Limits { job_queue: 1, ..Limits::default() };
    let mut server = Server::start(limits).await;
    let mut flood = server.connect("a").await;
    for _ in 0..100 {
        flood.send("{\"type\":\"progress\",\"completed\":1}\n").await;
    }
    let mut other = server.connect("b").await;
    other.send(SUBSCRIBE).await;
    message(&mut server.b).await;
    for _ in 0..100 {
        assert_eq!(message(&mut server.a).await.1, progress(1));
    }
}

#[tokio::test]
async fn a_repeated_id_counts_once_and_a_subscription_always() {
    let mut server = Server::start(Limits::default()).await;
    let now = "{\"id\":\"evt-1-2\",\"type\":\"checkpoint.now\"}\n";
    let subscribe = "{\"id\":\"evt-1-1\",\"type\":\"checkpoint.subscribe\"}\n";
    for again in [false, true] {
        let mut client = server.connect("a").await;
        client.send(format!("{subscribe}{now}{{\"type\":\"progress\",\"completed\":1}}\n")).await;
        assert!(matches!(message(&mut server.a).await.1, ProgramMessage::Subscribe(_)));
        if !again {
            assert_eq!(message(&mut server.a).await.1, ProgramMessage::Now);
        }
        let (id, last) = message(&mut server.a).await;
        assert_eq!(last, progress(1));
        drop(client);
        assert_eq!(left(&mut server.a).await, id);
    }
}

#[tokio::test]
async fn connections_are_limited_for_each_job_and_in_all() {
    let limits = Limits { connections: 3, connections_per_job: 2, ..Limits::default() };
    let mut server = Server::start(limits).await;
    let (first, first_id) = server.subscriber().await;
    let (_second, _) = server.subscriber().await;
    let error = server.connect("a").await.error().await;
    assert!(error.contains("job a has 2 connections"), "{error}");
    let mut third = server.connect("b").await;
    third.send(SUBSCRIBE).await;
    message(&mut server.b).await;
    let error = server.connect("b").await.error().await;
    assert!(error.contains("the agent has 3 connections"), "{error}");
    drop(first);
    assert_eq!(left(&mut server.a).await, first_id);
    retry_until_admitted(&mut server).await;
}

/// The end of a connection is told before its place is free.
async fn retry_until_admitted(server: &mut Server) {
    let deadline = Instant::now() + SOON;
    while Instant::now() < deadline {
        let mut client = server.connect("a").await;
        client.send("nonsense\n").await;
        if client.error().await.contains("not a JSON object") {
            return;
        }
    }
    panic!("the place was never free");
}

#[tokio::test]
async fn a_removed_job_lets_its_clients_go_after_the_last_message() {
    let mut server = Server::start(Limits::default()).await;
    let (mut client, id) = server.subscriber().await;
    server.hub.send(id, &AgentMessage::Captured { seq: 9 });
    server.hub.remove_job(&name("a"));
    assert_eq!(client.line().await, r#"{"type":"checkpoint.captured","seq":9}"#);
    assert_eq!(client.line().await, "");
    let deadline = Instant::now() + SOON;
    while server.path("a").exists() {
        assert!(Instant::now() < deadline, "the job's socket was not removed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let unknown = server.hub.bind_job_socket(&name("a"), server.place("a")).await.unwrap_err();
    assert!(unknown.to_string().contains("no job a"), "{unknown}");
}

#[tokio::test]
async fn a_job_of_the_same_name_gets_the_socket_at_once() {
    let mut server = Server::start(Limits::default()).await;
    let (mut old, _) = server.subscriber().await;
    for _ in 0..20 {
        server.hub.remove_job(&name("a"));
        server.a = server.hub.add_job(name("a"));
        server.hub.bind_job_socket(&name("a"), server.place("a")).await.unwrap();
    }
    assert_eq!(old.line().await, "", "the old job's client was let go");
    let (mut client, id) = server.subscriber().await;
    assert!(server.hub.send(id, &AgentMessage::request(1, false, None)));
    assert!(client.line().await.contains("request"));
}

#[tokio::test]
async fn closing_ends_every_connection_within_the_grace() {
    let mut server = Server::start(Limits::default()).await;
    let (mut client, _) = server.subscriber().await;
    assert_eq!(server.hub.close(SOON).await, 0);
    let mut rest = String::new();
    client.stream.read_to_string(&mut rest).await.unwrap();
    assert_eq!(rest, "");
}
