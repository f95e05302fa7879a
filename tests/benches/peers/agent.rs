//! The agent's memory, idle and while it copies.

use std::path::Path;

use nodus_tests::Agent;

use crate::nodus::{field, peak_memory};

/// Runs a real agent with one sleeping job whose state is `dir`, and takes a checkpoint of it.
pub(crate) fn memory(dir: &Path) {
    let agent = Agent::ready();
    let ctl = agent.ctl();
    let status = format!("/proc/{}/status", agent.pid());
    let idle = field(&status, "VmRSS:");
    let path = dir.display().to_string();
    ctl.submit("bench", &["--checkpoint", &path], &["sleep", "1000"]);
    ctl.wait_for_phase("bench", "Running");
    ctl.checkpoint_now("bench");
    let copying = peak_memory(&status);
    println!("## agent\n\n| | resident MiB |\n| --- | --- |");
    println!("| idle | {idle:.1} |\n| peak, copying {path} | {copying:.1} |\n");
}
