//! How many connections there may be, in all and of one user.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Each `logs -f` and each follower of events is a connection.
const MAX: usize = 1024;

/// So that one user's loop does not lock the others out.
const MAX_OF_USER: usize = 128;

/// The connections that are open.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_user: HashMap<u32, usize>,
}

/// One open connection; free again when dropped.
#[derive(Debug)]
pub(super) struct Seat {
    places: Places,
    uid: u32,
}

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Full {
    #[error("the control API has {MAX} connections, the most that are allowed")]
    All,
    #[error("user {0} has {MAX_OF_USER} connections to the control API, the most that are allowed")]
    User(u32),
}

impl Places {
    pub(super) fn take(&self, uid: u32) -> Result<Seat, Full> {
        let mut taken = self.taken();
        if taken.all >= MAX {
            return Err(Full::All);
        }
        let own = taken.by_user.entry(uid).or_default();
        if *own >= MAX_OF_USER {
            return Err(Full::User(uid));
        }
        *own += 1;
        taken.all += 1;
        Ok(Seat { places: self.clone(), uid })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        // No code that holds it can leave it half changed.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.all -= 1;
        if let Some(own) = taken.by_user.get_mut(&self.uid) {
            *own -= 1;
            if *own == 0 {
                taken.by_user.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_cannot_take_every_place() {
        let places = Places::default();
        let seats: Vec<Seat> = (0..MAX_OF_USER).map(|_| places.take(1).unwrap()).collect();
        assert_eq!(places.take(1).unwrap_err(), Full::User(1));
        let other = places.take(2).unwrap();
        drop(seats);
        assert_eq!(places.taken().by_user, HashMap::from([(2, 1)]));
        drop(other);
        assert_eq!(places.taken().all, 0);
    }

    #[test]
    fn there_is_a_limit_for_all() {
        let places = Places::default();
        let seats: Vec<Seat> = (0..MAX).map(|n| places.take(n as u32 % 16).unwrap()).collect();
        assert_eq!(places.take(99).unwrap_err(), Full::All);
        drop(seats);
        places.take(99).unwrap();
    }
}
