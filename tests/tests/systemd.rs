//! The shipped unit under a really booted systemd. Needs root, systemd-container and dbus, and is
//! run by `.ci/run`: `cargo test -p nodus-tests --test systemd -- --ignored`.

use nodus_tests::training::steps;
use nodus_tests::wait::{self, LONG};
use nodus_tests::{Ctl, Machine};

fn every_step(machine: &Machine, total: u64) {
    assert_eq!(steps(&machine.log("train", "1")), (1..=total).collect::<Vec<_>>());
    let detail = machine.describe("train");
    assert_eq!(detail["attempt"], 1, "the attempt was left alone: {detail}");
}

#[test]
#[ignore = "boots a machine"]
fn the_unit_is_active_only_when_the_socket_answers() {
    let machine = Machine::boot();
    let verify = machine.exec(&["systemd-analyze", "verify", "nodus-agent.service"]).ok();
    assert_eq!(verify.stderr, "", "the unit has no mistakes");
    for _ in 0..5 {
        machine.exec(&["systemctl", "start", "nodus-agent"]).ok();
        machine.exec(&["nodusctl", "list"]).ok();
        assert_eq!(machine.unit("ActiveState"), "active");
        machine.exec(&["systemctl", "stop", "nodus-agent"]).ok();
    }
    let config = machine.root().join("etc/nodus/agent.toml");
    std::fs::write(config, "[agent]\nno_such_key = 1\n").expect("the machine's disk");
    let start = machine.exec(&["systemctl", "start", "nodus-agent"]);
    assert_ne!(start.status, 0, "it is not ready with a configuration that it cannot read");
    assert_ne!(machine.unit("ActiveState"), "active");
    let journal = machine.exec(&["journalctl", "--unit", "nodus-agent", "--no-pager"]).ok();
    assert!(journal.stdout.contains("no_such_key"), "{}", journal.stdout);
}

#[test]
#[ignore = "boots a machine"]
fn the_watchdog_replaces_a_stuck_agent_and_jobs_go_on() {
    let machine = Machine::boot();
    machine.override_unit("[Service]\nWatchdogSec=2s\n");
    machine.exec(&["systemctl", "start", "nodus-agent"]).ok();
    machine.submit_example("train", 80);
    machine.wait_for_log("train", "step 2/");
    let stuck = machine.unit("MainPID");
    machine.exec(&["kill", "-STOP", &stuck]).ok();
    wait::until("another agent", LONG, || {
        let now = machine.unit("MainPID");
        now != stuck && now != "0" && machine.unit("ActiveState") == "active"
    });
    let journal = machine.exec(&["journalctl", "--unit", "nodus-agent", "--no-pager"]).ok();
    assert!(journal.stdout.contains("atchdog"), "{}", journal.stdout);
    machine.wait_for_phase("train", "Succeeded");
    every_step(&machine, 80);
}

#[test]
#[ignore = "boots a machine"]
fn a_restart_during_a_running_job_leaves_it_alone() {
    let machine = Machine::boot();
    machine.exec(&["systemctl", "start", "nodus-agent"]).ok();
    machine.submit_example("train", 50);
    machine.wait_for_log("train", "step 3/");
    let before = machine.unit("MainPID");
    machine.exec(&["systemctl", "restart", "nodus-agent"]).ok();
    assert_ne!(machine.unit("MainPID"), before);
    assert_eq!(machine.describe("train")["phase"], "Running");
    wait::until("the program to subscribe again", LONG, || {
        machine.describe("train")["subscribers"] == 1
    });
    machine.exec(&["nodusctl", "checkpoint", "now", "train"]).ok();
    machine.wait_for_phase("train", "Succeeded");
    every_step(&machine, 50);
}

#[test]
#[ignore = "boots a machine"]
fn a_restart_during_a_checkpoint_leaves_nothing_half_written() {
    let machine = Machine::boot();
    machine.exec(&["systemctl", "start", "nodus-agent"]).ok();
    machine.submit_example("train", 10_000);
    machine.wait_for_log("train", "step 2/");
    machine.exec(&["nodusctl", "checkpoint", "now", "train"]).ok();
    let state = machine.describe("train")["stateDir"].as_str().expect("it has one").to_owned();
    let fill = format!("head -c 300M /dev/urandom > {state}/model");
    machine.exec(&["sh", "-c", &fill]).ok();
    let mut asked = machine.start(&["nodusctl", "checkpoint", "now", "train"]);
    wait::until("the copy to be under way", LONG, || {
        machine.describe("train")["inProgress"]["stage"] == "Archiving"
    });
    machine.exec(&["systemctl", "restart", "nodus-agent"]).ok();
    asked.ends();

    machine.exec(&["nodusctl", "checkpoint", "verify", "train"]).ok();
    let leftovers = "find /var/lib/nodus/store -path '*/checkpoints/.*'";
    wait::until("leftovers to be gone", LONG, || {
        machine.exec(&["sh", "-c", leftovers]).ok().stdout.is_empty()
    });
    wait::until("the program to subscribe again", LONG, || {
        machine.describe("train")["subscribers"] == 1
    });
    let done = machine.exec(&["nodusctl", "checkpoint", "now", "train", "-o", "json"]);
    assert!(done.status == 0 || done.status == 6, "{}", done.stderr);
    machine.exec(&["nodusctl", "checkpoint", "verify", "train"]).ok();
    let detail = machine.describe("train");
    assert_eq!((&detail["attempt"], &detail["phase"]), (&1.into(), &"Running".into()), "{detail}");
}

#[test]
#[ignore = "boots a machine"]
fn a_node_that_shuts_down_takes_a_last_checkpoint_of_each_job() {
    let machine = Machine::boot();
    machine.exec(&["systemctl", "start", "nodus-agent"]).ok();
    machine.submit_example("train", 10_000);
    machine.wait_for_log("train", "step 3/");
    machine.shut_down();
    let store = machine.root().join("var/lib/nodus/store");
    let store = store.to_str().expect("a plain name");
    let home = tempfile::TempDir::new().expect("a temporary directory");
    let ctl = Ctl::standalone(home.path());
    let list = ctl.run(&["checkpoint", "list", "train", "--store", store, "-o", "json"]).ok();
    assert!(list.stdout.contains("\"Shutdown\""), "{}", list.stdout);
    let to = home.path().join("restored");
    let to_text = to.to_str().expect("a plain name");
    ctl.run(&["restore", "train", "--store", store, "--to", to_text]).ok();
    let saved = std::fs::read_to_string(to.join("progress.json")).expect("it was saved");
    let saved: serde_json::Value = serde_json::from_str(&saved).expect("it saves JSON");
    assert!(saved["step"].as_u64() >= Some(3), "{saved}");
}
