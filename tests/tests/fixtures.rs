//! The fixtures themselves: a test that cannot fail proves nothing.

use std::fs;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::time::Duration;

use nodus_tests::{Events, LoopFs, PUPPET_SOCKET, Puppets, Running, is_root, skipped, wait};
use serde_json::json;

#[test]
fn a_puppet_does_what_it_is_told() {
    let home = tempfile::TempDir::new().unwrap();
    let puppets = Puppets::listen(home.path(), "alone");
    let socket = home.path().join("events.sock");
    let agent = UnixListener::bind(&socket).unwrap();
    let state = home.path().join("state");
    fs::create_dir(&state).unwrap();
    let variable = puppets.variable();
    let mut command = Command::new(Puppets::program());
    command.env(PUPPET_SOCKET, variable.split_once('=').unwrap().1);
    command.env("NODUS_STATE_DIR", &state).env("NODUS_EVENTS_SOCKET", &socket);
    let mut running = Running::start(&mut command);

    let mut puppet = puppets.accept();
    assert_eq!(puppet.pid(), running.pid());
    puppet.save("a", "content");
    assert_eq!(fs::read_to_string(state.join("a")).unwrap(), "content");
    puppet.print("hello");
    running.says("hello");

    let mut events = puppet.subscriber();
    let (stream, _) = agent.accept().unwrap();
    let peer = rustix::net::sockopt::socket_peercred(&stream).unwrap();
    assert_eq!(peer.pid.as_raw_nonzero().get().unsigned_abs(), running.pid(), "it is the puppet's");
    let mut agent_side = Events::over(stream);
    agent_side.expect("checkpoint.subscribe");
    agent_side.send(&json!({ "type": "checkpoint.request", "seq": 7 }));
    assert_eq!(events.expect_request(), 7);
    assert!(puppet.events_at("/nowhere").is_err());
    drop(agent_side);
    events.expect_closed();

    puppet.exit(3);
    assert_eq!(running.ends().code(), Some(3));
}

#[test]
fn a_small_disk_is_small() {
    if !is_root() {
        return skipped("a_small_disk_is_small", "a loop file system needs root");
    }
    for disk in [LoopFs::ext4(16), LoopFs::xfs(300)] {
        let free = disk.free();
        assert!(free > 1 << 20, "{free}");
        let too_much = vec![1_u8; usize::try_from(free).unwrap() + (1 << 20)];
        assert!(fs::write(disk.path().join("large"), too_much).is_err());
    }
}

#[test]
#[should_panic(expected = "gave up waiting for nothing")]
fn a_wait_has_a_bound() {
    wait::until("nothing", Duration::from_millis(50), || false);
}

#[test]
#[should_panic(expected = "no line with something else")]
fn a_line_that_never_comes_is_missed() {
    Running::start(Command::new("echo").arg("something")).says("something else");
}
