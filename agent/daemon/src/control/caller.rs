//! Who asks: from the socket's peer credentials to a [`Caller`].

use std::ffi::CString;
use std::io;
use std::time::Duration;

use nix::unistd::{Gid, Group, Uid, User, getgrouplist};
use nodus_protocol::control::ProblemCode;
use tokio::net::UnixStream;

use crate::engine::{Caller, Refusal};
use crate::job::record::Owner;

/// A directory of users that does not answer for this long is not waited for.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// The user at the other end, with the groups that the system's user database gives them.
pub(super) async fn of(stream: &UnixStream, operators: Option<String>) -> Result<Caller, Refusal> {
    let credentials = stream.peer_cred().map_err(|error| unknown(&error.to_string()))?;
    let (uid, gid) = (credentials.uid(), credentials.gid());
    // The database may be on the network.
    let lookup = tokio::task::spawn_blocking(move || look_up(uid, gid, operators.as_deref()));
    match tokio::time::timeout(LOOKUP_TIMEOUT, lookup).await {
        Ok(Ok(Ok(caller))) => Ok(caller),
        Ok(Ok(Err(error))) => Err(unknown(&error.to_string())),
        Ok(Err(panic)) => Err(unknown(&panic.to_string())),
        Err(_) => Err(unknown("the user database does not answer")),
    }
}

fn look_up(uid: u32, gid: u32, operators: Option<&str>) -> io::Result<Caller> {
    let groups = groups_of(uid, gid)?;
    let operators = match operators {
        Some(name) => Group::from_name(name)?.map(|group| group.gid.as_raw()),
        None => None,
    };
    let operator = operators.is_some_and(|group| group == gid || groups.contains(&group));
    Ok(Caller { owner: Owner { uid, gid, groups }, operator })
}

/// A user without an entry has only the group that they came with.
fn groups_of(uid: u32, gid: u32) -> io::Result<Vec<u32>> {
    let Some(user) = User::from_uid(Uid::from_raw(uid))? else { return Ok(vec![gid]) };
    let name = CString::new(user.name)?;
    let groups = getgrouplist(&name, Gid::from_raw(gid))?;
    Ok(groups.into_iter().map(Gid::as_raw).collect())
}

fn unknown(why: &str) -> Refusal {
    Refusal::new(ProblemCode::Internal, format!("cannot tell who you are: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_the_groups_of_the_database() {
        let caller = look_up(0, 0, None).unwrap();
        assert_eq!((caller.owner.uid, caller.owner.gid), (0, 0));
        assert!(caller.owner.groups.contains(&0));
        assert!(!caller.operator);
    }

    #[test]
    fn a_user_without_an_entry_has_the_group_they_came_with() {
        let caller = look_up(3_999_999_999, 54321, Some("no-such-group")).unwrap();
        assert_eq!(caller.owner.groups, [54321]);
        assert!(!caller.operator);
    }

    #[test]
    fn members_of_the_operators_are_operators() {
        let root = Group::from_gid(Gid::from_raw(0)).unwrap().unwrap();
        assert!(look_up(3_999_999_999, 0, Some(&root.name)).unwrap().operator);
        assert!(!look_up(3_999_999_999, 54321, Some(&root.name)).unwrap().operator);
    }
}
