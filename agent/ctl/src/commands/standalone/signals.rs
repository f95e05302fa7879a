//! What signals mean to a standalone run.

use std::io;
use std::time::Duration;

use nodus_agent::job::Reclaim;
use nodus_protocol::checkpoint::Cause;
use nodus_protocol::job::Interruption;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A signal that a run acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// Ctrl-C.
    Interrupt,
    /// The terminal has gone.
    HangUp,
    /// The allocation is about to end this process.
    Terminate,
    /// The capacity is about to go away; somebody else ends this process.
    User1,
}

/// What a signal asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// Checkpoint, then stop.
    Suspend,
    /// Stop without waiting for more.
    Stop,
    /// Checkpoint, because the capacity goes away.
    Reclaim(Reclaim),
}

/// Wrappers such as `timeout` signal the process and then its group, which is one Ctrl-C to whoever
/// pressed it.
const SAME_PRESS: Duration = Duration::from_secs(1);

/// What to do about a signal; `ending` says how long ago an earlier one asked for the end.
pub(super) fn wish(received: Received, ending: Option<Duration>, grace: Duration) -> Option<Wish> {
    match (received, ending) {
        (Received::Interrupt | Received::HangUp, None) => Some(Wish::Suspend),
        (Received::Interrupt, Some(ago)) => (ago >= SAME_PRESS).then_some(Wish::Stop),
        (Received::HangUp | Received::User1, Some(_)) => None,
        (Received::Terminate, _) => Some(Wish::Reclaim(Reclaim {
            source: "SIGTERM".to_owned(),
            within: Some(grace),
            ends: Some(Interruption::Reclaim),
            cause: Cause::Reclaim,
        })),
        (Received::User1, None) => Some(Wish::Reclaim(Reclaim::notice("SIGUSR1", None))),
    }
}

impl Wish {
    /// Whether the run is over after it.
    pub(super) fn is_end(&self) -> bool {
        match self {
            Self::Suspend | Self::Stop => true,
            Self::Reclaim(reclaim) => reclaim.ends.is_some(),
        }
    }
}

/// The signals of this process.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    user1: Signal,
    /// None where whoever started us wants hang-ups to be ignored, as `nohup` does.
    hang_up: Option<Signal>,
}

impl Signals {
    /// From now on none of them ends the process by itself.
    pub(super) fn listen() -> io::Result<Self> {
        let hang_up = match is_ignored(HANG_UP)? {
            true => None,
            false => Some(signal(SignalKind::hangup())?),
        };
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            user1: signal(SignalKind::user_defined1())?,
            hang_up,
        })
    }

    pub(super) async fn next(&mut self) -> Received {
        let hang_up = async {
            match &mut self.hang_up {
                Some(signal) => signal.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => Received::Interrupt,
            _ = self.terminate.recv() => Received::Terminate,
            _ = self.user1.recv() => Received::User1,
            _ = hang_up => Received::HangUp,
        }
    }
}

/// The number of SIGHUP.
const HANG_UP: u32 = 1;

fn is_ignored(signal: u32) -> io::Result<bool> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    Ok(ignored(&status, signal))
}

/// `SigIgn` is a mask in hex; signal 1 is its lowest bit.
fn ignored(status: &str, signal: u32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(30);

    const BEFORE: Option<Duration> = Some(Duration::from_secs(5));

    #[test]
    fn the_first_ctrl_c_suspends_and_the_second_stops() {
        assert_eq!(wish(Received::Interrupt, None, GRACE), Some(Wish::Suspend));
        assert_eq!(wish(Received::Interrupt, BEFORE, GRACE), Some(Wish::Stop));
        assert_eq!(wish(Received::HangUp, None, GRACE), Some(Wish::Suspend));
        assert_eq!(wish(Received::HangUp, BEFORE, GRACE), None);
    }

    #[test]
    fn one_press_that_arrives_twice_is_one() {
        let at_once = Some(Duration::from_millis(3));
        assert_eq!(wish(Received::Interrupt, at_once, GRACE), None);
    }

    #[test]
    fn a_notice_ends_the_run_only_where_the_process_is_about_to_be_killed() {
        let terminate = wish(Received::Terminate, None, GRACE).unwrap();
        assert!(terminate.is_end());
        let Wish::Reclaim(reclaim) = terminate else { panic!("{terminate:?}") };
        assert_eq!((reclaim.within, reclaim.cause), (Some(GRACE), Cause::Reclaim));
        assert!(!wish(Received::User1, None, GRACE).unwrap().is_end());
        // The deadline of SIGTERM counts even where a suspend is under way.
        assert!(wish(Received::Terminate, BEFORE, GRACE).is_some());
        assert_eq!(wish(Received::User1, BEFORE, GRACE), None);
    }

    #[test]
    fn a_run_under_nohup_ignores_hang_ups() {
        assert!(ignored("Name:\tx\nSigIgn:\t0000000000001001\nSigCgt:\t0\n", HANG_UP));
        assert!(!ignored("Name:\tx\nSigIgn:\t0000000000001000\nSigCgt:\t1\n", HANG_UP));
        assert!(!ignored("", HANG_UP));
    }
}
