//! Who is asked, who has answered, and until when the rest is waited for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use nodus_protocol::checkpoint::Cause;
use nodus_protocol::event::AgentMessage;

use super::event::{Pid, Trigger, WaiterId};
use crate::events::ClientId;

/// Where everyone who was asked has left, this long is waited for one to come back, or for the end
/// of the attempt: the connections of a dying process close before its death is known.
pub(super) const REJOIN_GRACE: Duration = Duration::from_millis(500);

/// One or several triggers, merged: they get one checkpoint.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub(super) cause: Cause,
    pub(super) urgent: bool,
    pub(super) deadline: Option<Instant>,
    pub(super) expected_copy: Duration,
    pub(super) waiters: Vec<WaiterId>,
    /// When the first of them came.
    pub(super) since: Instant,
}

impl Wish {
    pub(super) fn new(now: Instant, trigger: Trigger) -> Self {
        Self {
            cause: trigger.cause,
            urgent: trigger.urgent,
            deadline: trigger.deadline,
            expected_copy: trigger.expected_copy,
            waiters: trigger.waiter.into_iter().collect(),
            since: now,
        }
    }

    /// Takes another trigger in: it can only get more urgent.
    pub(super) fn merge(&mut self, trigger: Trigger) {
        self.cause = stronger(self.cause, trigger.cause);
        self.urgent |= trigger.urgent;
        self.deadline = self.deadline.into_iter().chain(trigger.deadline).min();
        self.expected_copy = self.expected_copy.max(trigger.expected_copy);
        self.waiters.extend(trigger.waiter);
    }

    /// How long acks are waited for.
    pub(super) fn ack_deadline(&self, now: Instant, ack_timeout: Duration) -> Instant {
        let begin_copy = self
            .deadline
            .map(|deadline| deadline.checked_sub(self.expected_copy).map_or(now, |at| at.max(now)));
        // An instant too far off to be told is as good as none; a day is a bound all the same.
        let timeout = now.checked_add(ack_timeout).unwrap_or(now + Duration::from_secs(86_400));
        match begin_copy {
            Some(at) if self.urgent => at,
            Some(at) => at.min(timeout),
            None => timeout,
        }
    }
}

/// The cause that says more about why a checkpoint had to be taken.
pub(super) fn stronger(one: Cause, other: Cause) -> Cause {
    let rank = |cause| match cause {
        Cause::Interval => 0,
        Cause::Shutdown => 2,
        Cause::Reclaim => 3,
        Cause::Suspend => 4,
        Cause::Exit => 5,
        _ => 1, // Request, and causes that a later version adds.
    };
    if rank(other) > rank(one) { other } else { one }
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    pid: Pid,
    answered: bool,
}

/// A request that is open.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) seq: u64,
    pub(super) wish: Wish,
    /// When it went out.
    pub(super) since: Instant,
    /// When the checkpoint goes on without the acks that are missing.
    pub(super) until: Instant,
    asked: BTreeMap<ClientId, Asked>,
    /// Processes whose connections closed before they answered.
    gone: BTreeSet<Pid>,
    /// When the last one left.
    gone_at: Instant,
}

/// Where an open request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Answers are missing, up to this moment.
    Waiting(Instant),
    /// Every process that was asked has answered.
    Answered,
    /// Nobody is left to wait for, and somebody left without an answer.
    Deserted,
    /// Time is up.
    TimedOut,
}

impl Request {
    pub(super) fn new(seq: u64, wish: Wish, now: Instant, until: Instant) -> Self {
        let (asked, gone) = (BTreeMap::new(), BTreeSet::new());
        Self { seq, wish, since: now, until, asked, gone, gone_at: now }
    }

    /// A client that the request is being sent to.
    pub(super) fn ask(&mut self, client: ClientId, pid: Pid) {
        self.asked.insert(client, Asked { pid, answered: false });
        self.gone.remove(&pid);
    }

    /// The request as it is sent now.
    pub(super) fn message(&self, now: Instant) -> AgentMessage {
        let left = self.until.saturating_duration_since(now);
        AgentMessage::request(self.seq, self.wish.urgent, Some(left))
    }

    /// Takes another trigger in, and says whether the clients have to hear of it: the request has
    /// become urgent, or there is less time for it. It is never loosened.
    pub(super) fn tighten(&mut self, now: Instant, trigger: Trigger, timeout: Duration) -> bool {
        let was_urgent = self.wish.urgent;
        self.wish.merge(trigger);
        let until = match trigger.urgent || trigger.deadline.is_some() {
            true => Wish::new(now, trigger).ack_deadline(now, timeout),
            false => self.until,
        };
        let sooner = until < self.until;
        self.until = self.until.min(until);
        self.wish.urgent && (!was_urgent || sooner) && now < self.until
    }

    pub(super) fn is_asked(&self, client: ClientId) -> bool {
        self.asked.contains_key(&client)
    }

    pub(super) fn asks(&self, pid: Pid) -> bool {
        self.gone.contains(&pid) || self.asked.values().any(|asked| asked.pid == pid)
    }

    /// An ack counts for the process, on whichever of its connections it comes.
    pub(super) fn answer(&mut self, pid: Pid) {
        for asked in self.asked.values_mut().filter(|asked| asked.pid == pid) {
            asked.answered = true;
        }
        self.gone.remove(&pid);
    }

    pub(super) fn leave(&mut self, now: Instant, client: ClientId) {
        if let Some(Asked { pid, answered: false }) = self.asked.remove(&client) {
            let elsewhere = self.asked.values().any(|asked| asked.pid == pid);
            if !elsewhere {
                self.gone.insert(pid);
                self.gone_at = now;
            }
        }
    }

    /// The clients whose answer is missing.
    pub(super) fn waiting(&self) -> impl Iterator<Item = ClientId> + '_ {
        self.asked.iter().filter(|(_, asked)| !asked.answered).map(|(client, _)| *client)
    }

    /// The processes that have not said that their files are complete, gone or not.
    pub(super) fn owing(&self) -> BTreeSet<Pid> {
        let silent = self.asked.values().filter(|asked| !asked.answered).map(|asked| asked.pid);
        silent.chain(self.gone.iter().copied()).collect()
    }

    pub(super) fn somebody_left(&self) -> bool {
        !self.gone.is_empty()
    }

    pub(super) fn standing(&self, now: Instant) -> Standing {
        let nobody_waits = self.waiting().next().is_none();
        if nobody_waits && self.gone.is_empty() {
            return Standing::Answered;
        }
        let until =
            if nobody_waits { self.until.min(self.gone_at + REJOIN_GRACE) } else { self.until };
        match now >= until {
            false => Standing::Waiting(until),
            true if nobody_waits => Standing::Deserted,
            true => Standing::TimedOut,
        }
    }
}
