//! Planning and carrying out in one go, for whoever owns the epoch.

use super::{Contents, Policy, Situation, execute, plan, plan_delete};
use crate::error::Result;
use crate::store::{Epoch, JobStore};

/// Deletes what the policy no longer keeps; says how many steps that took.
///
/// # Errors
/// [`crate::Error::Fenced`] where the epoch is over, or what could not be removed.
pub fn apply(
    store: &JobStore,
    epoch: &Epoch,
    policy: &Policy,
    situation: Situation,
) -> Result<usize> {
    let steps = plan(&Contents::read(store)?, policy, situation);
    for step in &steps {
        execute(store, epoch, *step)?;
    }
    Ok(steps.len())
}

/// Deletes one checkpoint because somebody asked for it; others that need its data keep it.
///
/// # Errors
/// [`crate::Error::NotFound`] where there is none of this number, and as [`apply`].
pub fn delete(store: &JobStore, epoch: &Epoch, seq: u64) -> Result<()> {
    let steps = plan_delete(store.job().as_str(), &Contents::read(store)?, seq)?;
    steps.into_iter().try_for_each(|step| execute(store, epoch, step))
}
