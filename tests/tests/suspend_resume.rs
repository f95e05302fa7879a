//! A run that is suspended, or killed, in the middle goes on from what it saved, and does each step
//! to the last.

use std::fs;
use std::path::Path;

use nodus_tests::training::{assert_goes_on, example, letter, python, resumed_from, steps};
use nodus_tests::wait::{self, LONG};
use nodus_tests::{Agent, Ctl, Standalone, is_root, skipped};
use rustix::process::Signal;

/// Long enough to be caught in the middle, short enough to be waited for.
const STEPS: u64 = 60;
const QUICK: [&str; 4] = ["--env", "STEPS=60", "--env", "STEP_SECONDS=0.05"];

/// The example, preceded by what this test wants to know of its process.
fn program() -> [String; 3] {
    let script = format!(
        "echo restored=${{NODUS_RESTORED-no}} attempt=$NODUS_ATTEMPT pid=$$; exec {} {}",
        python(),
        example()
    );
    ["sh".to_owned(), "-c".to_owned(), script]
}

fn submit(ctl: &Ctl, name: &str) {
    let program = program();
    ctl.submit(name, &QUICK, &program.each_ref().map(String::as_str));
}

fn pid_in(log: &str) -> u32 {
    let pid = log.lines().find_map(|line| line.split_once("pid=")?.1.parse().ok());
    pid.expect("the program printed its process id")
}

fn kill(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(pid.expect("a process id"), Signal::KILL)
        .expect("a process of this test that is still there");
}

/// Submits the example, and waits until a checkpoint holds this many steps or more.
fn run_to_a_checkpoint(agent: &Agent, name: &str) -> u64 {
    let ctl = agent.ctl();
    submit(&ctl, name);
    ctl.wait_for_log(name, 1, "step 5/");
    ctl.checkpoint_now(name);
    saved_step(&ctl.state_dir(name))
}

fn saved_step(state: &Path) -> u64 {
    let text = fs::read_to_string(state.join("progress.json")).expect("it saved");
    let saved: serde_json::Value = serde_json::from_str(&text).expect("it saves JSON");
    saved["step"].as_u64().expect("it saves its step")
}

#[test]
fn suspended_in_the_middle_it_resumes_there() {
    let agent = Agent::ready();
    let ctl = agent.ctl();
    submit(&ctl, "train");
    ctl.wait_for_log("train", 1, "step 5/");

    ctl.run(&["suspend", "job/train"]).ok();
    assert_eq!(ctl.phase("train"), "Suspended");
    let first = ctl.log("train", 1);
    assert!(steps(&first).last() < Some(&STEPS), "it was suspended in the middle");
    assert!(first.contains("restored=no attempt=1"), "{first}");

    ctl.run(&["resume", "job/train"]).ok();
    ctl.wait_for_phase("train", "Succeeded");
    let second = ctl.log("train", 2);
    assert!(second.contains("restored=1 attempt=2"), "{second}");
    assert_goes_on(&first, &second, 5, STEPS);
    assert_eq!(ctl.describe("train")["attempt"], 2);
    assert_eq!(ctl.describe("train")["retries"], 0);
}

#[test]
fn the_state_directory_can_be_lost_while_it_is_suspended() {
    let agent = Agent::ready();
    let ctl = agent.ctl();
    submit(&ctl, "train");
    ctl.wait_for_log("train", 1, "step 5/");
    ctl.run(&["suspend", "train"]).ok();
    fs::remove_dir_all(ctl.state_dir("train")).expect("it is there");

    ctl.run(&["resume", "train"]).ok();
    ctl.wait_for_phase("train", "Succeeded");
    assert_goes_on(&ctl.log("train", 1), &ctl.log("train", 2), 5, STEPS);
}

#[test]
fn kill_9_of_the_program() {
    let agent = Agent::ready();
    let ctl = agent.ctl();
    let saved = run_to_a_checkpoint(&agent, "train");
    kill(pid_in(&ctl.log("train", 1)));
    ctl.wait_for_phase("train", "Succeeded");
    assert_goes_on(&ctl.log("train", 1), &ctl.log("train", 2), saved, STEPS);
    let detail = ctl.describe("train");
    assert_eq!(detail["retries"], 1, "a signal counts as a failure of the program");
    assert_eq!(detail["attempts"][0]["end"]["signal"], 9);
}

#[test]
fn kill_9_of_the_shim() {
    let agent = Agent::ready();
    let ctl = agent.ctl();
    let saved = run_to_a_checkpoint(&agent, "train");
    let shims = agent.shims();
    assert!(!shims.is_empty(), "an attempt has a shim: {:?}", agent.processes());
    shims.into_iter().for_each(kill);
    ctl.wait_for_phase("train", "Succeeded");
    let last = ctl.describe("train")["attempt"].as_u64().and_then(|n| u32::try_from(n).ok());
    let last = last.expect("attempts are counted");
    assert_goes_on(&ctl.log("train", 1), &ctl.log("train", last), saved, STEPS);
}

#[test]
fn kill_9_of_the_agent_leaves_the_job_alone() {
    let mut agent = Agent::ready();
    let ctl = agent.ctl();
    run_to_a_checkpoint(&agent, "train");
    agent.kill_9_and_restart();
    ctl.wait_for_phase("train", "Succeeded");
    assert_eq!(ctl.describe("train")["attempt"], 1, "the attempt went on");
    assert_eq!(steps(&ctl.log("train", 1)), (1..=STEPS).collect::<Vec<_>>());
}

#[test]
fn an_exit_while_the_agent_is_away_is_not_missed() {
    let mut agent = Agent::ready();
    let ctl = agent.ctl();
    submit(&ctl, "train");
    ctl.wait_for_log("train", 1, "step 5/");
    let pid = pid_in(&ctl.log("train", 1));
    agent.kill_9();
    wait::until("the program to end", LONG, || !Path::new(&format!("/proc/{pid}")).exists());
    agent.start();
    ctl.wait_for_phase("train", "Succeeded");
    assert_eq!(ctl.describe("train")["attempts"][0]["end"]["code"], 0);
    assert_eq!(steps(&ctl.log("train", 1)), (1..=STEPS).collect::<Vec<_>>());
}

#[test]
fn kill_9_of_all_three() {
    let mut agent = Agent::ready();
    let saved = run_to_a_checkpoint(&agent, "train");
    kill_everything(&mut agent);
    agent.start();
    let ctl = agent.ctl();
    ctl.wait_for_phase("train", "Succeeded");
    assert_goes_on(&ctl.log("train", 1), &ctl.log("train", 2), saved, STEPS);
}

#[test]
fn kill_9_of_all_three_and_the_state_directory_is_lost() {
    let mut agent = Agent::ready();
    let ctl = agent.ctl();
    let saved = run_to_a_checkpoint(&agent, "train");
    let state = ctl.state_dir("train");
    kill_everything(&mut agent);
    fs::remove_dir_all(state).expect("it is there");
    agent.start();
    ctl.wait_for_phase("train", "Succeeded");
    assert_goes_on(&ctl.log("train", 1), &ctl.log("train", 2), saved, STEPS);
}

/// The agent first, so that it can do nothing about the others.
fn kill_everything(agent: &mut Agent) {
    agent.kill_9();
    wait::until("every process to be gone", LONG, || {
        let left = agent.processes();
        for (pid, _) in &left {
            let pid = i32::try_from(*pid).ok().and_then(rustix::process::Pid::from_raw);
            let _ = rustix::process::kill_process(pid.expect("a process id"), Signal::KILL);
        }
        left.is_empty()
    });
}

#[test]
fn two_programs_that_know_only_the_guide_run_side_by_side() {
    if !is_root() {
        return skipped("two letter programs", "private /nodus and /run/nodus need root");
    }
    let agent = Agent::ready();
    let ctl = agent.ctl();
    let names = ["one", "two"];
    for name in names {
        let own = format!("NAME={name}");
        let options = [&QUICK[..], &["--env", &own]].concat();
        ctl.submit(name, &options, &[python(), &letter()]);
    }
    for name in names {
        ctl.wait_for_log(name, 1, "step 5/");
        let seq = ctl.checkpoint_now(name);
        assert_eq!(ctl.checkpoint(name, seq)["consistency"], "Acked", "{name} answered");
        ctl.run(&["suspend", name]).ok();
    }
    for name in names {
        ctl.run(&["resume", name]).ok();
    }
    for name in names {
        ctl.wait_for_phase(name, "Succeeded");
        assert_goes_on(&ctl.log(name, 1), &ctl.log(name, 2), 5, STEPS);
        let state = fs::read_to_string(ctl.state_dir(name).join("progress.json"));
        let state = state.expect("it saved");
        assert!(state.contains(&format!("\"name\": \"{name}\"")), "{name} has {state}");
    }
}

/// The same in one process, without an agent: Ctrl-C, and the same command again.
mod standalone {
    use super::*;

    fn train() -> Standalone {
        Standalone::new("train").env("STEPS", "60").env("STEP_SECONDS", "0.05")
    }

    fn start(run: &Standalone) -> nodus_tests::Running {
        run.run(&program().each_ref().map(String::as_str))
    }

    #[test]
    fn ctrl_c_suspends_and_the_same_command_resumes() {
        let run = train();
        let mut first = start(&run);
        first.says("step 5/");
        first.ctrl_c();
        assert_eq!(first.ends().code(), Some(75), "{:?}", first.stderr());
        assert_eq!(nodus_tests::stored_of(&run.checkpoints()).len(), 1);

        let mut second = start(&run);
        assert_eq!(second.ends().code(), Some(0), "{:?}", second.stderr());
        let (first, second) = (first.stdout().join("\n"), second.stdout().join("\n"));
        assert!(first.contains("restored=no attempt=1"), "{first}");
        assert!(second.contains("restored=1 attempt=2"), "{second}");
        assert_goes_on(&first, &second, 5, STEPS);
    }

    #[test]
    fn the_state_directory_can_be_lost() {
        let run = train();
        let mut first = start(&run);
        first.says("step 5/");
        first.ctrl_c();
        first.ends();
        fs::remove_dir_all(run.state_root()).expect("it is there");

        let mut second = start(&run);
        assert_eq!(second.ends().code(), Some(0), "{:?}", second.stderr());
        assert_goes_on(&first.stdout().join("\n"), &second.stdout().join("\n"), 5, STEPS);
    }

    #[test]
    fn kill_9_of_the_program() {
        let run = train();
        let mut first = start(&run);
        first.says("step 25/"); // past a save of the program's own
        kill(pid_in(&first.stdout().join("\n")));
        assert_eq!(first.ends().code(), Some(0), "{:?}", first.stderr());
        let all = first.stdout().join("\n");
        let (before, after) = all.split_at(all.find("resumed from").expect("it went on"));
        assert_goes_on(before, after, 20, STEPS);
    }

    #[test]
    fn kill_9_of_the_whole_run() {
        let run = train();
        let mut first = start(&run);
        first.says("step 5/");
        first.ctrl_c();
        first.ends();
        let mut second = start(&run);
        second.says("step 30/");
        let pid = pid_in(&second.stdout().join("\n"));
        second.kill_9();
        // Nothing may be left that would write beside the next run.
        wait::until("the program to go with it", LONG, || {
            !Path::new(&format!("/proc/{pid}")).exists()
        });

        let mut third = start(&run);
        assert_eq!(third.ends().code(), Some(0), "{:?}", third.stderr());
        let third = third.stdout().join("\n");
        assert!(resumed_from(&third) >= Some(5), "{third}");
        assert_goes_on(&second.stdout().join("\n"), &third, 5, STEPS);
    }

    #[test]
    fn kill_9_of_the_shim() {
        let run = train();
        let mut first = start(&run);
        first.says("step 25/"); // past a save of the program's own
        let shims = run.processes().into_iter().filter(|(_, line)| line.contains("__shim"));
        let shims: Vec<u32> = shims.map(|(pid, _)| pid).collect();
        assert!(!shims.is_empty(), "an attempt has a shim: {:?}", run.processes());
        shims.into_iter().for_each(kill);
        assert_eq!(first.ends().code(), Some(0), "{:?}", first.stderr());
        let all = first.stdout().join("\n");
        let (before, after) = all.split_at(all.find("resumed from").expect("it went on"));
        assert_goes_on(before, after, 20, STEPS);
    }

    #[test]
    fn sigterm_saves_and_ends_the_run() {
        let run = train();
        let mut first = start(&run);
        first.says("step 5/");
        first.signal(Signal::TERM);
        assert_eq!(first.ends().code(), Some(75), "{:?}", first.stderr());
        let newest = run.checkpoints().pop().expect("it was saved");
        assert_eq!(
            (&newest["cause"], &newest["consistency"]),
            (&"Reclaim".into(), &"Acked".into())
        );
        fs::remove_dir_all(run.state_root()).expect("it is there");

        let mut second = start(&run);
        assert_eq!(second.ends().code(), Some(0), "{:?}", second.stderr());
        assert_goes_on(&first.stdout().join("\n"), &second.stdout().join("\n"), 5, STEPS);
    }

    #[test]
    fn sigusr1_saves_and_the_program_goes_on() {
        let run = train();
        let mut once = start(&run);
        once.says("step 5/");
        once.signal(Signal::USR1);
        assert_eq!(once.ends().code(), Some(0), "{:?}", once.stderr());
        assert_eq!(steps(&once.stdout().join("\n")), (1..=STEPS).collect::<Vec<_>>());
        let all = run.checkpoints();
        let notice = all.iter().find(|checkpoint| checkpoint["cause"] == "Reclaim");
        assert_eq!(notice.expect("it was saved")["consistency"], "Acked");
    }

    #[test]
    fn the_programs_own_failure_is_the_runs() {
        let run = Standalone::new("fails").option("--max-retries").option("0");
        let mut once = run.run(&["sh", "-c", "exit 42"]);
        assert_eq!(once.ends().code(), Some(42), "{:?}", once.stderr());
    }
}
