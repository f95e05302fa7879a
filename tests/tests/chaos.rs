//! Whatever is done to a job, at whatever moment: the next attempt goes on from what was saved.
//!
//! Each run is a sequence of blows, drawn from a seed that is printed. After each of them the same
//! is checked: nothing that was acked and committed is lost, no step is left out, everything stored
//! is sound, and nothing is left over.

#![allow(clippy::print_stderr, reason = "a failure is understood by the blows before it")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nodus_tests::training::{example, python, resumed_from, steps};
use nodus_tests::wait::{self, LONG};
use nodus_tests::{Agent, AgentConfig, Ctl, LoopFs, is_root};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const JOB: &str = "train";

/// MiB of the store's own file system: small enough to be filled at once.
const STORE: u64 = 16;

/// What can happen to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blow {
    Checkpoint,
    SuspendAndResume,
    KillProgram,
    KillShim,
    KillAgent,
    KillAgentInACheckpoint,
    KillAll,
    LoseState,
    FillStore,
}

const BLOWS: [Blow; 9] = [
    Blow::Checkpoint,
    Blow::SuspendAndResume,
    Blow::KillProgram,
    Blow::KillShim,
    Blow::KillAgent,
    Blow::KillAgentInACheckpoint,
    Blow::KillAll,
    Blow::LoseState,
    Blow::FillStore,
];

/// Random numbers that are the same for the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// A training job under blows, and what must not be lost.
struct Victim {
    agent: Agent,
    ctl: Ctl,
    disk: Option<LoopFs>,
    dice: Dice,
    /// The attempt that was running when it was last looked at.
    attempt: u32,
    /// The step in the newest checkpoint that was seen to be committed and acked.
    floor: u64,
    /// The highest number of a checkpoint that was seen.
    seq: u64,
}

impl Victim {
    fn new(seed: u64) -> Self {
        eprintln!("seed {seed}");
        let disk = is_root().then(|| LoopFs::ext4(STORE));
        let config = AgentConfig::default().setting("stop_timeout = \"5s\"");
        let agent = match &disk {
            Some(disk) => config.store(&disk.path().join("store")).start(),
            None => config.start(),
        };
        let ctl = agent.ctl();
        let options =
            ["--env", "STEPS=1000000", "--env", "STEP_SECONDS=0.02", "--max-retries", "1000"];
        ctl.submit(JOB, &options, &[python(), &example()]);
        ctl.wait_for_log(JOB, 1, "step 2/");
        let mut victim = Self { agent, ctl, disk, dice: Dice(seed), attempt: 1, floor: 0, seq: 0 };
        victim.checkpoint();
        victim
    }

    fn suffer(&mut self, blow: Blow) {
        eprintln!("{blow:?}, attempt {}, floor {}, seq {}", self.attempt, self.floor, self.seq);
        // A moment of the program's step that nobody chose.
        let moment = self.dice.below(40);
        let before = self.last_step();
        wait::until("some more steps", LONG, || self.last_step() >= before + moment / 8);
        match blow {
            Blow::Checkpoint => self.checkpoint(),
            Blow::SuspendAndResume => {
                self.suspend();
                self.resume();
            }
            Blow::LoseState => {
                self.suspend();
                fs::remove_dir_all(self.ctl.state_dir(JOB)).expect("the state of a suspended job");
                self.resume();
            }
            Blow::KillProgram => {
                self.kill(&self.programs());
                self.skip_the_pause();
            }
            Blow::KillShim => {
                self.kill(&self.agent.shims());
                self.skip_the_pause();
            }
            Blow::KillAgent => self.agent.kill_9_and_restart(),
            Blow::KillAgentInACheckpoint => {
                let asked = self.ctl.start(&["checkpoint", "now", JOB]);
                let end = Instant::now() + Duration::from_millis(self.dice.below(80));
                wait::until("a moment of it", LONG, || Instant::now() >= end);
                self.agent.kill_9_and_restart();
                drop(asked);
                self.checkpoint(); // It removes what is left of the other.
            }
            Blow::KillAll => {
                let all = [self.programs(), self.agent.shims()].concat();
                self.agent.kill_9();
                self.kill(&all);
                self.agent.start();
                self.skip_the_pause();
            }
            Blow::FillStore => self.fill_store(),
        }
        self.check();
    }

    fn describe(&self) -> Value {
        self.ctl.describe(JOB)
    }

    fn programs(&self) -> Vec<u32> {
        let script = example();
        let is_program = |line: &str| line.starts_with(python()) && line.contains(script.as_str());
        let all = self.agent.processes().into_iter();
        all.filter(|(_, line)| is_program(line)).map(|(pid, _)| pid).collect()
    }

    fn kill(&self, pids: &[u32]) {
        for pid in pids {
            let pid = i32::try_from(*pid).ok().and_then(Pid::from_raw).expect("a process id");
            let _ = kill_process(pid, Signal::KILL); // One may have gone with another.
        }
    }

    fn last_step(&self) -> u64 {
        steps(&self.ctl.log(JOB, self.attempt)).last().copied().unwrap_or_default()
    }

    /// Takes a checkpoint that must be committed and acked, and raises the floor to what it holds.
    fn checkpoint(&mut self) {
        // A program that lost its connection with the agent comes back within a second.
        wait::until("the program to subscribe", LONG, || self.describe()["subscribers"] == 1);
        let before = self.last_step();
        let seq = self.ctl.checkpoint_now(JOB);
        let taken = self.ctl.checkpoint(JOB, seq);
        assert_eq!(taken["consistency"], "Acked", "{taken}");
        let step = self.step_in(seq);
        assert!(step >= before, "checkpoint {seq} holds step {step}, and {before} were done");
        self.floor = self.floor.max(step);
    }

    /// The step that a checkpoint holds.
    fn step_in(&self, seq: u64) -> u64 {
        let to = self.agent.home().join(format!("look-{seq}"));
        let path = to.to_str().expect("a plain name");
        self.ctl.run(&["restore", JOB, "--seq", &seq.to_string(), "--to", path]).ok();
        let step = saved_step(&to);
        fs::remove_dir_all(&to).expect("it was restored there");
        step
    }

    fn suspend(&self) {
        self.ctl.run(&["suspend", JOB]).ok();
        assert_eq!(self.ctl.phase(JOB), "Suspended");
        wait::until("all processes of the job to be gone", LONG, || {
            self.programs().is_empty() && self.agent.shims().is_empty()
        });
    }

    fn resume(&self) {
        self.ctl.run(&["resume", JOB]).ok();
    }

    /// A program that fails is tried again after a pause; to suspend and resume it takes no time.
    fn skip_the_pause(&self) {
        wait::until("the end to be noticed", LONG, || {
            let job = self.describe();
            job["phase"] == "Recovering" || job["attempt"] != self.attempt
        });
        if self.ctl.phase(JOB) == "Recovering" {
            self.ctl.run(&["suspend", JOB]).ok();
            self.ctl.run(&["resume", JOB]).ok();
        }
    }

    /// Checkpoints fail while there is no room, and succeed again once there is.
    fn fill_store(&mut self) {
        let Some(disk) = &self.disk else { return };
        let filler = disk.path().join("filler");
        fill(&filler);
        let refused = self.ctl.run(&["checkpoint", "now", JOB]);
        let full = disk.free();
        fs::remove_file(&filler).expect("it was made above");
        assert_eq!(refused.status, 1, "{full} bytes were free: {refused:?}");
        assert!(
            refused.stderr.contains("NoSpace") || refused.stdout.contains("NoSpace"),
            "{refused:?}"
        );
        self.checkpoint();
    }

    /// What holds after every blow.
    fn check(&mut self) {
        wait::until("the job to run", LONG, || {
            let job = self.describe();
            let phase = job["phase"].as_str().expect("a job has a phase");
            assert!(!["Failed", "Succeeded"].contains(&phase), "{job}");
            phase == "Running"
        });
        let job = self.describe();
        let attempt =
            u32::try_from(job["attempt"].as_u64().expect("a number")).expect("a small one");
        if attempt != self.attempt {
            self.check_start(attempt);
            self.attempt = attempt;
        }
        let before = self.last_step();
        wait::until("the job to go on", LONG, || self.last_step() > before);
        self.check_processes();
        self.check_store();
        let conditions = &self.describe()["conditions"];
        assert!(conditions.is_null(), "{conditions}");
    }

    /// Each attempt since begins where a save of the one before left off, and leaves no step out.
    fn check_start(&self, newest: u32) {
        for attempt in self.attempt + 1..=newest {
            wait::until("its first step", LONG, || {
                attempt < newest || !steps(&self.ctl.log(JOB, attempt)).is_empty()
            });
            let log = self.ctl.log(JOB, attempt);
            let done = steps(&log);
            let Some(from) = resumed_from(&log) else {
                assert!(done.is_empty() && attempt < newest, "attempt {attempt} began anew: {log}");
                continue; // It was ended before it said anything.
            };
            assert!(
                from >= self.floor,
                "attempt {attempt} went back to {from}, before {}",
                self.floor
            );
            let last = (1..attempt).flat_map(|before| steps(&self.ctl.log(JOB, before))).max();
            let last = last.unwrap_or_default();
            assert!(
                from <= last,
                "attempt {attempt} went on from {from}, and only {last} were done"
            );
            assert!(done.iter().copied().eq(from + 1..=from + done.len() as u64), "{done:?}");
        }
    }

    fn check_processes(&self) {
        let mut seen = Vec::new();
        wait::until("one program under one shim, and nothing else", LONG, || {
            seen = self.agent.processes();
            self.programs().len() == 1 && self.agent.shims().len() == 1 && seen.len() == 3
        });
    }

    fn check_store(&mut self) {
        self.ctl.run(&["checkpoint", "verify", JOB]).ok();
        let all = self.ctl.checkpoints(JOB);
        let seqs: Vec<u64> = all.iter().filter_map(|one| one["seq"].as_u64()).collect();
        assert!(seqs.is_sorted(), "{seqs:?}");
        let newest = seqs.last().copied().expect("one was taken at the start");
        assert!(newest >= self.seq, "the numbers went back from {} to {newest}", self.seq);
        self.seq = newest;
        let is_acked = |one: &&Value| one["committed"].is_string() && one["consistency"] == "Acked";
        let acked = all.iter().rfind(is_acked).and_then(|one| one["seq"].as_u64());
        let step = self.step_in(acked.expect("one was acked at the start, and one is kept"));
        assert!(step >= self.floor, "the newest acked holds {step}, before {}", self.floor);
        self.floor = step;
        let checkpoints = self.agent.store().join("jobs").join(JOB).join("checkpoints");
        // One that is being taken has a name of its own until it is committed.
        wait::until("nothing but checkpoints in the store", LONG, || {
            names(&checkpoints).iter().all(|name| name.parse::<u64>().is_ok())
        });
        let state = self.ctl.state_dir(JOB);
        let around = names(state.parent().expect("it is in the job's directory"));
        assert!(around.iter().all(|name| !name.contains("nodus-restore")), "{around:?}");
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("a directory");
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

fn saved_step(state: &Path) -> u64 {
    let text = fs::read_to_string(state.join("progress.json")).expect("it was saved");
    let saved: Value = serde_json::from_str(&text).expect("it saves JSON");
    saved["step"].as_u64().expect("it saves its step")
}

/// Takes all the room of the file system that `filler` is in.
fn fill(filler: &PathBuf) {
    use std::io::Write as _;
    let mut file = fs::File::create(filler).expect("room for a name");
    for size in [1 << 16, 1 << 10, 1] {
        let block = vec![0x55_u8; size];
        while file.write_all(&block).is_ok() {}
    }
    let _ = file.sync_all();
}

/// A job that outlives its agent may run for days: what the killed one left must not stay as long.
#[test]
fn an_unfinished_checkpoint_of_a_killed_agent_goes_with_the_next_one() {
    let mut victim = Victim::new(1);
    victim.agent.kill_9();
    let checkpoints = victim.agent.store().join("jobs").join(JOB).join("checkpoints");
    let unfinished = checkpoints.join(".new-unfinished");
    fs::create_dir(&unfinished).expect("the store can be written");
    fs::write(unfinished.join("data-0.tar.zst"), "half").expect("as above");
    victim.agent.start();
    victim.checkpoint();
    assert!(!unfinished.exists(), "it is still there");
    victim.check();
    assert_eq!(victim.attempt, 1, "the job ran on");
}

#[test]
fn whatever_happens_it_goes_on_from_what_was_saved() {
    let mut victim = Victim::new(20_261_130);
    // Each once, in an order of the dice.
    let mut blows = BLOWS.to_vec();
    while !blows.is_empty() {
        let next = victim.dice.below(blows.len() as u64);
        victim.suffer(blows.swap_remove(usize::try_from(next).expect("a small number")));
    }
}

#[test]
#[ignore = "takes three minutes; NODUS_CHAOS_SEED repeats one"]
fn whatever_happens_for_minutes_it_goes_on_from_what_was_saved() {
    let seed = std::env::var("NODUS_CHAOS_SEED").ok().and_then(|seed| seed.parse().ok());
    let mut victim = Victim::new(seed.unwrap_or_else(|| u64::from(std::process::id())));
    let end = Instant::now() + Duration::from_mins(3);
    while Instant::now() < end {
        let next = victim.dice.below(BLOWS.len() as u64);
        victim.suffer(BLOWS[usize::try_from(next).expect("a small number")]);
    }
}
