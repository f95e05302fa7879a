//! How far a checkpoint can be trusted. No IO.

use nodus_protocol::checkpoint::Consistency;

/// What the program said about its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Every subscriber acknowledged, or the program had ended with 0.
    Acked,
    /// Nobody was there to ask, or not everybody answered.
    NotAcked {
        /// The program died while a request to it was open, so in the middle of a save.
        request_open_at_death: bool,
    },
}

/// What was seen of the files, as numbers of paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Changed in every try to copy them.
    pub unstable: u64,
    /// Changed during capture or copy.
    pub moved: u64,
    /// Held open for writing.
    pub writers: u64,
    /// Directories that lost files while they were listed.
    pub partly_gone: u64,
}

/// Decides as `docs/format.md` says.
#[must_use]
pub fn decide(asked: Asked, evidence: &Evidence) -> Consistency {
    let Evidence { unstable, moved, writers, partly_gone } = *evidence;
    match asked {
        _ if unstable > 0 => Consistency::Torn,
        Asked::Acked => Consistency::Acked,
        Asked::NotAcked { request_open_at_death: true } => Consistency::Torn,
        Asked::NotAcked { .. } if moved + writers + partly_gone > 0 => Consistency::Torn,
        Asked::NotAcked { .. } => Consistency::Quiet,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNASKED: Asked = Asked::NotAcked { request_open_at_death: false };
    const DIED: Asked = Asked::NotAcked { request_open_at_death: true };

    fn check(asked: Asked, evidence: Evidence, expected: Consistency) {
        assert_eq!(decide(asked, &evidence), expected, "{asked:?}, {evidence:?}");
    }

    /// C06: a program that dies between request and ack leaves nothing that can be trusted.
    #[test]
    fn c06_death_before_the_ack() {
        check(DIED, Evidence::default(), Consistency::Torn);
    }

    #[test]
    fn quiet_needs_that_nothing_moved() {
        check(UNASKED, Evidence::default(), Consistency::Quiet);
        check(UNASKED, Evidence { moved: 1, ..Evidence::default() }, Consistency::Torn);
        check(UNASKED, Evidence { writers: 1, ..Evidence::default() }, Consistency::Torn);
        check(UNASKED, Evidence { partly_gone: 1, ..Evidence::default() }, Consistency::Torn);
    }

    /// C24: an ack does not make a file whole that changed in every try.
    #[test]
    fn c24_an_ack_does_not_outweigh_a_file_that_never_stood_still() {
        let open = Evidence { writers: 3, moved: 1, partly_gone: 1, unstable: 0 };
        check(Asked::Acked, open, Consistency::Acked);
        check(Asked::Acked, Evidence { unstable: 1, ..open }, Consistency::Torn);
    }
}
