//! Messages that carry an `id` count once for each process.

use std::collections::hash_map::RandomState;
use std::collections::{HashSet, VecDeque};
use std::hash::BuildHasher;

/// The newest ids of one job's processes.
///
/// Ids are kept as keyed hashes: an id may be a thousand characters long, and two of a few
/// thousand meet in 64 bits less often than once in ten trillion fillings.
#[derive(Debug)]
pub(super) struct Seen {
    hasher: RandomState,
    known: HashSet<u64>,
    oldest_first: VecDeque<u64>,
    limit: usize,
}

impl Seen {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            hasher: RandomState::new(),
            known: HashSet::new(),
            oldest_first: VecDeque::new(),
            limit,
        }
    }

    /// Remembers the id, and says whether it is new.
    pub(super) fn is_new(&mut self, pid: u32, id: &str) -> bool {
        let hash = self.hasher.hash_one((pid, id));
        if !self.known.insert(hash) {
            return false;
        }
        self.oldest_first.push_back(hash);
        if self.oldest_first.len() > self.limit
            && let Some(oldest) = self.oldest_first.pop_front()
        {
            self.known.remove(&oldest);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_counts_once_for_each_process() {
        let mut seen = Seen::new(2);
        assert!(seen.is_new(1, "a"));
        assert!(!seen.is_new(1, "a"));
        assert!(seen.is_new(2, "a"), "another process");
        assert!(seen.is_new(1, "b"), "pushes the oldest out");
        assert!(!seen.is_new(2, "a"));
        assert!(seen.is_new(1, "a"), "forgotten");
        assert_eq!(seen.known.len(), 2);
    }
}
